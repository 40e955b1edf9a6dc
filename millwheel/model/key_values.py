"""What a coordinator returns: entries, snapshots and changes (:mod:`millwheel.coordination.contract`)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KeyChange", "KeyValue", "PrefixSnapshot"]


@dataclass(frozen=True, slots=True)
class KeyValue:
    """One key with its value. ``created`` and ``modified`` are the revisions in which that happened.

    ``damage``: why the value cannot be read; ``value`` is then empty.
    """

    key: str
    value: bytes
    created: int
    modified: int
    lease: int = 0
    damage: str = ""


@dataclass(frozen=True, slots=True)
class PrefixSnapshot:
    """The keys of a prefix, sorted, as of ``revision``."""

    revision: int
    entries: tuple[KeyValue, ...]


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One change that a watch reports. ``value`` is None if the key was deleted, by a call or by its lease's end.

    ``damage``: why the value cannot be read; ``value`` is then empty.
    """

    key: str
    value: bytes | None
    revision: int
    damage: str = ""
