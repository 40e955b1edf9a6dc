"""Deduplication: clicks that a browser reports again while it waits for an answer.

Each record that is injected has an id, so MillWheel itself drops what an injector repeats. This is about copies that
come from further away: they have an id in their value. An id is remembered for a day of event time, then forgotten.
"""

from __future__ import annotations

import msgspec

import millwheel as mw

__all__ = ["Click", "deduplicate"]


class Click(msgspec.Struct, frozen=True):
    """Somebody clicks. ``id`` is from the browser."""

    id: str
    link: str


deduplicate = mw.Topology("deduplicate")
clicks = deduplicate.source("clicks", Click)
clicks.key_by("id").deduplicate("unique", mw.hours(24))
