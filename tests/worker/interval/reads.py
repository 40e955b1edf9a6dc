"""A computation that produces many records at once, as the reader of a source does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import millwheel as mw
from millwheel.model.incarnation import IncarnationId
from millwheel.sdk.context import Context
from millwheel.sdk.scope import route_of_all
from tests.worker.interval.driver import IntervalDriver

DriverT = TypeVar("DriverT", bound=IntervalDriver)

TIMES: Final = [14, 13, 12, 11]
CONSUMERS: Final = IncarnationId("c.1"), IncarnationId("d.1")


class ReadsAtOnce(mw.Computation[tuple[str, str], None]):
    """Produces some records at once for each record that it gets, and one behind them."""

    _feeds = True

    def process_record(self, ctx: Context[None], record: mw.Record[tuple[str, str]]) -> None:
        values = [f"{record.value[1]}-{key}" for key in ("a", "y", "a", "z")]
        output = ctx._scope.outputs["out"]  # noqa: SLF001  # readers of sources alone produce at once
        if not ctx._produce_all(output, values, TIMES, 1_000):  # noqa: SLF001  # see above
            for at, value in zip(TIMES, values, strict=True):
                ctx.produce("out", value, timestamp=mw.Timestamp(at))
        ctx.produce("other", record.value[1], timestamp=mw.Timestamp(9))


def keyed_by_end(driver: DriverT) -> DriverT:
    """The same driver. One consumer of "out" has the last letter of a text as its key."""

    def key(value: str) -> bytes:
        return value[-1].encode()

    binding = driver.state.scope.outputs["out"]
    binding.route = lambda value: ((CONSUMERS[0], key(value)),)
    binding.route_all = route_of_all([(CONSUMERS[0], key)])
    return driver


def locate(cuts: list[bytes], missing: frozenset[int] = frozenset()) -> Callable[[Any, bytes], str]:
    """Intervals that begin at the cuts. Those that are ``missing`` have no owner yet."""

    def journal(consumer: Any, key: bytes) -> str:
        number = sum(cut <= key for cut in cuts)
        return "" if number in missing else f"{consumer}.j{number}"

    return journal
