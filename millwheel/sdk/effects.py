"""The effects of hooks that become rows of a journal entry.

They are Structs, because many are made: a NamedTuple takes ten times as long to make, and a dataclass, too. No mypyc
compiles them, so they are apart from what does the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millwheel.model.incarnation import IncarnationId

__all__ = ["ProducedColumns", "Production", "TimerSetting"]


class TimerSetting(msgspec.Struct, frozen=True, gc=False):
    """A timer that a hook set. ``cause`` is the timestamp of the record or timer that the hook ran for.

    ``origin`` is the position that the commit assigns when it journals the timer. A replaced timer gets a new one.
    """

    at: int
    hold: int | None
    cause: int
    origin: int = 0


class Production(msgspec.Struct, frozen=True, gc=False):
    """A record that a hook produced. ``targets`` are its consumers (incarnation ids), each with the record's key there.

    ``origin`` identifies the input of the hook. It is used for deterministic production ids (weak productions).
    """

    stream: str
    value: bytes
    timestamp: int
    targets: tuple[tuple[IncarnationId, bytes], ...]
    origin: Any = None


class ProducedColumns(msgspec.Struct, frozen=True):
    """Records of one stream and time, one of each key: columns of equal length. ``targets``: as of a Production."""

    stream: str
    timestamp: int
    keys: Sequence[bytes]
    values: Sequence[bytes]
    targets: Sequence[tuple[tuple[IncarnationId, bytes], ...]]
