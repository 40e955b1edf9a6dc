"""The environment variables that there are. A manifest that sets another one has a mistake."""

from __future__ import annotations

from collections.abc import Iterable

from millwheel.config import Settings, declared
from millwheel.config.loading import FILE_VARIABLE, environment_name

KNOWN = frozenset({*map(environment_name, declared(Settings)), FILE_VARIABLE, "MILLWHEEL_ADDRESS"})


def unknown(names: Iterable[str]) -> set[str]:
    """Those of the names that begin like ours and mean nothing."""
    return {name for name in names if name.startswith("MILLWHEEL_")} - KNOWN
