"""The intervals whose owners report."""

from __future__ import annotations

from itertools import pairwise

from millwheel.model.keys import KeyInterval

__all__ = ["pieces"]


def pieces(count: int) -> list[KeyInterval]:
    """All keys in ``count`` intervals.

    >>> [str(one) for one in pieces(2)]
    ["[b'', b'80000000')", "[b'80000000', +inf)"]
    """
    bounds = [b"", *(b"%08x" % (number * (2**32 // count)) for number in range(1, count)), None]
    return [KeyInterval(start or b"", end) for start, end in pairwise(bounds)]
