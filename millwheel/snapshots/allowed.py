"""The places where a master may keep snapshots: the setting ``master.snapshot_locations``.

Invariant: a master with this setting writes and reads below its places only. A caller chooses location and name, so
both are compared, whole component by component, after all symbolic links are resolved. Files are then opened by the
resolved path (``location.py``), and a file of a snapshot that is a link itself is refused.

What could break it: a user of the machine who may write to such a place, and makes a link between comparison and use.
So only the master's user may write there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from millwheel.config.locations import Place, parse_place
from millwheel.rpc.failures import FailureCode, RequestError

__all__ = ["ANYWHERE", "AllowedPlaces"]

SETTING: Final = "master.snapshot_locations"


class AllowedPlaces:
    """Places with everything below them."""

    def __init__(self, texts: Iterable[str] | None) -> None:
        """``texts``: directories and URLs. None: there is no limit but the rights of the process."""
        self._texts = None if texts is None else tuple(texts)

    def resolve(self, place: Place, shown: str) -> Place:
        """The place without symbolic links. ``shown``: how messages name it.

        Raises:
            RequestError: It is not below an allowed place.
        """
        resolved = _resolved(place)
        if self._texts is None:
            return resolved
        if any(resolved.is_within(_resolved(parse_place(text))) for text in self._texts):
            return resolved
        allowed = ", ".join(self._texts) or "nowhere"
        raise RequestError(
            FailureCode.PERMISSION_DENIED,
            f"{shown} is not where this master may keep snapshots: {SETTING} allows {allowed}",
            f"choose an allowed location, or add one to {SETTING} of each master and restart them. Symbolic links are "
            "followed before the comparison",
            reason="LOCATION_NOT_ALLOWED",
        )


def _resolved(place: Place) -> Place:
    return place if place.directory is None else parse_place(os.path.realpath(place.directory))


ANYWHERE: Final = AllowedPlaces(None)
"""For the command line and ``start-dev``, which run with the rights of their user."""
