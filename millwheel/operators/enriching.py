"""Calls of a service for each record (section 4.1: hooks may wait for other systems)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, Generic, TypeVar

from millwheel.model.backoff import Backoff
from millwheel.model.time import Duration, seconds
from millwheel.sdk.computation import Computation
from millwheel.sdk.context import Context
from millwheel.sdk.durations import check_duration
from millwheel.sdk.errors import UsageError
from millwheel.sdk.records import Record

__all__ = ["SKIPS_WAITS", "Enrich"]

T = TypeVar("T")
_LONGEST_WAIT: Final = seconds(30)
_SECOND: Final = 1_000_000
SKIPS_WAITS: Final[ContextVar[bool]] = ContextVar("SKIPS_WAITS", default=False)
"""Whether calls are repeated at once. Virtual time stands still while a hook runs, so its waits take none of it."""


class Enrich(Computation[Any, None], Generic[T]):
    """Produces what an asynchronous function returns for each record.

    A call that raises, or takes too long, is repeated after waits that double. If all calls fail, ``otherwise`` returns
    the result. Without it the hook fails with the last error, and the failure policy decides.

    Args:
        function: Returns the result for a value.
        output: The stream of the results. They have the timestamps of the records.
        result: The type of the results.
        timeout: How long a call may take, in microseconds.
        retries: How often a call is repeated.
        backoff: The wait before the first repetition, in microseconds.
        otherwise: Returns the result for a value whose calls have failed.
        key_of: Returns the user's key of a value, for dead letters. None: there is none.

    Raises:
        UsageError: ``timeout`` or ``backoff`` is not positive or probably in another unit, or ``retries`` is negative.
    """

    def __init__(
        self,
        function: Callable[[T], Awaitable[Any]],
        output: str,
        result: Any,
        *,
        timeout: Duration,
        retries: int,
        backoff: Duration,
        otherwise: Callable[[T], Any] | None,
        key_of: Callable[[T], bytes] | None,
    ) -> None:
        check_duration("enrich(timeout=...)", timeout)
        check_duration("enrich(backoff=...)", backoff)
        if retries < 0:
            raise UsageError(f"enrich takes retries from 0 on, not {retries}")
        self.function = function
        self.output = output
        self.result = result
        self.timeout = timeout
        self.retries = retries
        self.backoff = Backoff(backoff, max(backoff, _LONGEST_WAIT))
        self.otherwise = otherwise
        self.key_of = key_of

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        return {self.output: self.result}

    async def process_record(self, ctx: Context[None], record: Record[Any]) -> None:
        """Produce the result for the record."""
        ctx.produce(self.output, await self._result(record.value))

    def _key_in_letters(self, key: str, values: Callable[[], Sequence[T]]) -> str:
        return "" if self.key_of is None else self.key_of(values()[0]).decode()

    async def _result(self, value: T) -> Any:
        import asyncio  # takes time, which programs without such calls save

        for attempt in range(self.retries + 1):
            try:
                async with asyncio.timeout(self.timeout / _SECOND):
                    return await self.function(value)
            except Exception:
                if attempt == self.retries:
                    if self.otherwise is None:
                        raise
                    return self.otherwise(value)
            await asyncio.sleep(0 if SKIPS_WAITS.get() else self.backoff.step(attempt + 1) / _SECOND)
        raise AssertionError("the last attempt returns or raises")
