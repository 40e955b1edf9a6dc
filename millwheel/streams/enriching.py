"""How a call of a service for each record becomes a computation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from millwheel.model.time import Duration, milliseconds, seconds
from millwheel.operators import Enrich
from millwheel.sdk.errors import UsageError
from millwheel.streams.declaring import Input, StepOptions, declare_step
from millwheel.streams.derivations import key_reader, spread_key

__all__ = ["CallOptions", "declare_calls"]

_CONCURRENCY: Final = 64
_TIMEOUT: Final = seconds(10)
_BACKOFF: Final = milliseconds(100)


class CallOptions(StepOptions, total=False):
    """The options of ``enrich``."""

    concurrency: int
    timeout: Duration
    retries: int
    backoff: Duration
    otherwise: Callable[[Any], Any] | None


def declare_calls(
    given: Input, name: str, function: Callable[[Any], Awaitable[Any]], to: Any, options: CallOptions, *, keyed: bool
) -> None:
    """Declare the computation that calls ``function`` for each record.

    The records of a key get one of ``concurrency`` keys. A key has one hook at a time. So this is how many calls run at
    the same time in all workers, and the records of a key keep their order. ``keyed``: whether the key is the user's.

    Raises:
        UsageError: ``concurrency`` is not positive, or as by :class:`Enrich`.
    """
    concurrency = options.pop("concurrency", _CONCURRENCY)
    if concurrency < 1:
        raise UsageError(f"enrich takes a positive concurrency, not {concurrency}")
    step: Enrich[Any] = Enrich(
        function,
        name,
        to,
        timeout=options.pop("timeout", _TIMEOUT),
        retries=options.pop("retries", 0),
        backoff=options.pop("backoff", _BACKOFF),
        otherwise=options.pop("otherwise", None),
        key_of=key_reader(given.extractor) if keyed else None,
    )
    spread = given._replace(extractor=spread_key(given.extractor, given.record_type, concurrency))
    declare_step(name, step, [spread], {}, cast("StepOptions", options))
