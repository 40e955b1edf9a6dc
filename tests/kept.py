"""What an object keeps in memory, for tests of its bounds (G13). They need to name no attribute."""

from __future__ import annotations

import gc
from types import FunctionType, ModuleType
from typing import Any, TypeVar

Kind = TypeVar("Kind")


def kept(owner: object, kind: type[Kind]) -> list[Kind]:
    """The objects of a kind that are reachable from ``owner``. Code and classes lead to the whole program, so no way
    goes through them."""
    seen: dict[int, Any] = {}
    waiting = [owner]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen and not isinstance(one, (type, ModuleType, FunctionType)):
            seen[id(one)] = one
            waiting += gc.get_referents(one)
            waiting += one if isinstance(one, dict) else ()  # keys that are strings are no referents
    return [one for one in seen.values() if isinstance(one, kind)]
