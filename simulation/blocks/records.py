"""The records and states of simulations, and what blocks have recorded in a run."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

import millwheel as mw

__all__ = [
    "DIVIDED",
    "FAILED",
    "REMAINDERS",
    "SEEN",
    "STATELESS",
    "Bucket",
    "Gathered",
    "Item",
    "Kept",
    "KeptMarked",
    "KeptTwice",
    "Marked",
    "Numbered",
    "Step",
    "Tallied",
]

REMAINDERS: Final = 3

STATELESS: Final = "fires, and nothing is known of the key (G2)"
"""The end of a complaint that is no violation in one case.

An owner that was cut off may not know yet that its computation was cancelled. The rows are gone, and so is the journal
that it would append to.
"""

SEEN: Final[list[str]] = []
"""The complaints of hooks, in the current run."""

FAILED: Final[Counter[int]] = Counter()
"""How often a poison block has failed on an injected record, in the current run."""

DIVIDED: Final[set[str]] = set()
"""The computations that have had more than one interval, in the current run."""


class Step(msgspec.Struct, array_like=True, frozen=True):
    """One effective call of a hook: the ``number``-th of its key, at a low watermark."""

    computation: str
    key: str
    number: int
    watermark: int
    late: bool = False
    """Whether its record was late without having been injected late (G7).

    It is checked only in calls that take effect. What a deposed owner's hooks receive has no effect.
    """


class Item(msgspec.Struct):
    """A record.

    ``ids``: the injected records that it represents. ``a`` and ``b``: the fields that consumers use as keys.
    ``tainted``: one of the ids was injected late, so the record may be late anywhere.
    """

    ids: list[int]
    a: str
    b: str
    tainted: bool = False
    steps: list[Step] = []


class Bucket(msgspec.Struct):
    """What a key has collected under one tag."""

    ids: list[int] = []
    steps: list[Step] = []
    tainted: bool = False
    timestamp: int = mw.MIN_TIMESTAMP
    due: int = mw.MAX_TIMESTAMP
    """The time for which its timer is set."""


class Numbered(msgspec.Struct):
    """The number of a key's steps so far, in the format of later code."""

    count: int = 0


class Tallied(msgspec.Struct):
    """The number of a key's steps so far, in the format of :class:`Tally`."""

    counts: list[int] = []


class Kept(mw.GrowingState):
    """A key's state with collections in pages, and copies of what they contain."""

    count: int = 0
    copies: list[int]
    items: mw.ListState[str]
    found: mw.MapState[str, int]
    times: mw.OrderedState[int]
    seen: mw.SetState[int]
    counts: mw.CounterState[int]
    """How many copies have each remainder of ``REMAINDERS``."""


class Marked(msgspec.Struct):
    """An element of a later version, with the marks of the functions that have converted it."""

    text: str
    marks: list[str] = []


def mark_first(text: str) -> Marked:
    """Convert an element of :class:`Kept`."""
    return Marked(text, ["first"])


def mark_second(element: Marked) -> Marked:
    """Convert an element of :class:`KeptMarked`."""
    return Marked(element.text, [*element.marks, "second"])


class KeptMarked(mw.GrowingState):
    """The state of later code than that with :class:`Kept`: other elements, and one collection less."""

    count: int = 0
    copies: list[int]
    began: list[int]
    """The first numbers of each later version: elements from there on are its own."""
    items: mw.ListState[Marked] = mw.migrated(mark_first)
    found: mw.MapState[str, int]
    times: mw.OrderedState[int]
    seen: mw.Dropped
    counts: mw.CounterState[int]


class KeptTwice(KeptMarked):
    """The state of still later code."""

    items = mw.migrated(mark_first, mark_second)


class Gathered(msgspec.Struct):
    """A key's state: the number of its steps so far, and the records that wait for timers."""

    number: int = 0
    fired: int = mw.MIN_TIMESTAMP
    buckets: dict[str, Bucket] = {}
