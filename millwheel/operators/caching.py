"""Answers of a service that are kept for a time, for :class:`Enrich`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Hashable
from functools import wraps
from typing import Any, Final, TypeVar

from millwheel.model.time import Duration
from millwheel.sdk.durations import check_duration
from millwheel.sdk.errors import UsageError
from millwheel.sdk.typeinfo import type_name

__all__ = ["cached"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_SECOND: Final = 1_000_000


def cached(
    function: Callable[[K], Awaitable[V]], *, keep: Duration, size: int = 10_000
) -> Callable[[K], Coroutine[Any, Any, V]]:
    """An asynchronous function whose results are kept for a time, by their argument: for calls of a service.

    The results are in the memory of each process, and are no state: after the crash of a process, or a move to another
    one, the service is called again. A ``TopologyHarness`` is one process: its ``crash()`` and ``advance_clock()`` drop
    no result. A call that fails is not kept. Calls of one argument that run at the same time are each made: none
    waits for another one, so a key with many records at once may ask several times. Arguments
    that are equal share a result, such as 1, 1.0 and True. What is returned is shared, so it must not be changed. For
    example::

        >>> import millwheel as mw
        >>> from millwheel.testing import TopologyHarness
        >>> calls = []
        >>> async def ask(customer: str) -> str:
        ...     calls.append(customer)
        ...     return customer.title()
        >>> name_of = mw.cached(ask, keep=mw.minutes(10))
        >>> async def label(order: tuple[str, int]) -> str:
        ...     return f"{await name_of(order[0])}: {order[1]}"
        >>> shop = mw.Topology("shop")
        >>> labels = shop.source("orders", tuple[str, int]).enrich("labels", label)
        >>> harness = TopologyHarness(shop)
        >>> for number in (1, 2):
        ...     harness.send("orders", ("ann", number), timestamp=mw.Timestamp(1_700_000_000_000_000))
        >>> harness.values("labels"), calls
        (['Ann: 1', 'Ann: 2'], ['ann'])
        >>> harness.close()

    Args:
        function: An asynchronous function of one argument, which can be a key of a dict.
        keep: How long a result is kept, in microseconds, by the clock of the process.
        size: The most results that are kept. Those go first that were used least recently.

    Raises:
        UsageError: ``keep`` or ``size`` is not positive, or ``keep`` is probably in another unit. Also, when it is
            called, if ``function`` returns nothing that can be awaited.
    """
    check_duration("keep", keep)
    if size < 1:
        raise UsageError(f"cached takes a positive size, not {size}")
    known: dict[K, tuple[float, V]] = {}
    """Until when each result is kept, by the clock of the event loop; the least recently used first."""

    @wraps(function)
    async def call(argument: K) -> V:
        from asyncio import get_running_loop  # takes time, which programs without such calls save

        clock = get_running_loop().time
        found = known.pop(argument, None)
        if found is None or found[0] <= clock():
            answer = function(argument)
            if not isinstance(answer, Awaitable):
                raise UsageError(
                    f"cached takes an asynchronous function, and this one returned {type_name(type(answer))}: make it "
                    "`async def`"
                )
            result = await answer
            found = clock() + keep / _SECOND, result
            known.pop(argument, None)
        known[argument] = found
        if len(known) > size:
            del known[next(iter(known))]
        return found[1]

    return call
