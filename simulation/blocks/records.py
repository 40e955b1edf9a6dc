"""What simulated records and states are, and what blocks have noted in a run."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

import millwheel as mw

__all__ = ["DIVIDED", "FAILED", "SEEN", "STATELESS", "Bucket", "Gathered", "Item", "Numbered", "Step", "Tallied"]

STATELESS: Final = "fires, and nothing is known of the key (G2)"
"""How a complaint ends of which an owner that was cut off is innocent while it has not heard that its computation was
cancelled: the rows are gone, and so is the journal that it would have to append to."""

SEEN: Final[list[str]] = []
"""What hooks complained of, in the present run."""

FAILED: Final[Counter[int]] = Counter()
"""How often a poison block has failed on an injected record, in the present run."""

DIVIDED: Final[set[str]] = set()
"""The computations that have been in more than one interval, in the present run."""


class Step(msgspec.Struct, array_like=True, frozen=True):
    """One hook's run that took effect: the ``number``-th of its key, at a low watermark."""

    computation: str
    key: str
    number: int
    watermark: int
    late: bool = False
    """Whether its record was late without having been injected late (G7). Judged when it took effect: what a deposed
    owner's hooks are shown goes nowhere."""


class Item(msgspec.Struct):
    """A record. ``ids``: the injected records that it stands for; ``a`` and ``b``: what consumers key it by.

    ``tainted``: one of them was injected late, so it may be late anywhere.
    """

    ids: list[int]
    a: str
    b: str
    tainted: bool = False
    steps: list[Step] = []


class Bucket(msgspec.Struct):
    """What a key has gathered under one tag."""

    ids: list[int] = []
    steps: list[Step] = []
    tainted: bool = False
    timestamp: int = mw.MIN_TIMESTAMP
    due: int = mw.MAX_TIMESTAMP
    """When its timer is to fire."""


class Numbered(msgspec.Struct):
    """A key's steps so far, as later code keeps them."""

    count: int = 0


class Tallied(msgspec.Struct):
    """The same, as still later code keeps them."""

    counts: list[int] = []


class Gathered(msgspec.Struct):
    """A key's state: steps so far, and what waits for timers."""

    number: int = 0
    fired: int = mw.MIN_TIMESTAMP
    buckets: dict[str, Bucket] = {}
