"""The names that snapshots have if a person gives them none."""

from __future__ import annotations

from millwheel.model.time import Timestamp, to_datetime

__all__ = ["snapshot_name"]


def snapshot_name(topology: str, now: Timestamp) -> str:
    """Return the name of a snapshot that is taken now, such as ``shop-20260131T120000Z``."""
    return f"{topology}-{to_datetime(now):%Y%m%dT%H%M%SZ}"
