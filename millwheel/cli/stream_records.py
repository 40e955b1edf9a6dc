"""Records of a stream as the commands of ``millwheel stream`` show them."""

from __future__ import annotations

from typing import Any

import msgspec

from millwheel.client.subscription import Subscription
from millwheel.model.time import Timestamp, format_timestamp

__all__ = ["as_text", "field_of", "kept_note"]


def kept_note(subscription: Subscription, from_oldest: bool) -> str:
    """Return a note about the records before the printed ones, or an empty text if no note is needed."""
    since = subscription.kept_since
    at = "now" if since is None else format_timestamp(Timestamp(since - since % 1_000_000))
    if subscription.made_log:
        return (
            f"stream {subscription.stream} had no log yet: its records are kept from now on ({at}), because a tail or "
            "a cursor asks for them; what was produced before is not shown. When nothing reads the log any more, "
            f"`millwheel stream log delete {subscription.stream}` ends it"
        )
    return f"stream {subscription.stream} keeps its records since {at}" if from_oldest and since is not None else ""


def field_of(shown: Any, path: str) -> Any:
    """Return the field of a shown value at a path, such as user.id. KeyError: it has no such field."""
    for name in path.split("."):
        if not isinstance(shown, dict):
            raise KeyError(path)
        shown = shown[name]
    return shown


def as_text(shown: Any) -> str:
    """Return a text as it is, and any other shown value as JSON."""
    return shown if isinstance(shown, str) else msgspec.json.encode(shown).decode()
