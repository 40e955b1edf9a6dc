"""The intervals whose owners report."""

from __future__ import annotations

from itertools import pairwise

from millwheel.authority.keyed import MAX_MEMBERS
from millwheel.model.keys import KeyInterval

__all__ = ["members", "names_of"]


def members(count: int) -> list[tuple[str, KeyInterval]]:
    """Computations and their intervals: all keys of each computation, in ``count`` intervals together.

    A computation has as many as the authority accepts of one.

    >>> [str(keys) for _, keys in members(2)]
    ["[b'', b'80000000')", "[b'80000000', +inf)"]
    """
    found: list[tuple[str, KeyInterval]] = []
    while len(found) < count:
        size = min(MAX_MEMBERS, count - len(found))
        name = f"window-counter.{len(found) // MAX_MEMBERS + 1}"
        bounds = [b"", *(b"%08x" % (number * (2**32 // size)) for number in range(1, size)), None]
        found += [(name, KeyInterval(start or b"", end)) for start, end in pairwise(bounds)]
    return found


def names_of(owned: list[tuple[str, KeyInterval]]) -> list[str]:
    """The computations."""
    return list(dict.fromkeys(name for name, _ in owned))
