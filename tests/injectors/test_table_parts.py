"""How large the parts of a table are, where the routing changes while it is sent (5.2)."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from millwheel.client.injector.admission import SendTurns
from millwheel.client.injector.column_division import DELIVERY_BYTES, DELIVERY_RECORDS
from millwheel.client.injector.ids import RecordIds
from millwheel.client.injector.messages import KeyedRecords, Limits
from millwheel.client.injector.routing import ConsumerRouting, Route, StreamRouting
from millwheel.client.injector.settings import InjectorSettings
from millwheel.client.injector.tables import TableAdmission, plain_table
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import KeyInterval

pytestmark = pytest.mark.guarantee("G13", section="5.2")
BOUNDS = [b"", b"d", b"h", b"m"]
ROWS = 60_000


def routed(consumers: int, intervals: int) -> StreamRouting:
    ends = [*BOUNDS[1:intervals], None]
    keys = [KeyInterval(start, end) for start, end in zip(BOUNDS, ends, strict=False)]
    found = {}
    for name in map("c{}".format, range(consumers)):
        routes = [Route(one, f"{name}-{one.start.hex()}", "a") for one in keys]
        found[IncarnationId(name)] = ConsumerRouting(IncarnationId(name), routes, computation=name, fields=("key",))
    return StreamRouting(1, found, column_batches=True)


class Sending:
    """A session and an admission, of which each wait for room may bring another routing."""

    def __init__(self, *routings: StreamRouting, limits: Limits | None = None, width: int = 1) -> None:
        self.routing, *self.later = routings
        self.waits: list[int] = []
        self.accepted: list[KeyedRecords] = []
        self.turns, self.ids = SendTurns(), RecordIds("s", "p", "p")
        table = pa.table({"key": ["a", "f", "j", "z"] * (ROWS // 4), "text": ["x" * width] * ROWS, "at": range(ROWS)})
        self.table = plain_table(table, "at")
        settings = InjectorSettings(limits=limits or Limits(), any_timestamp=True)
        self.core = SimpleNamespace(stream="s", process="p", window=settings.limits.window_records)
        self.tables = TableAdmission(cast(Any, self), cast(Any, self), settings)

    def check(self) -> None: ...

    def drain(self) -> None: ...

    async def wait_for_room(self, newest: int, count: int) -> None:
        self.waits.append(count)
        if len(self.waits) > 1 and self.later:
            self.routing = self.later.pop(0)

    def step(self, columns: KeyedRecords) -> None:
        self.accepted.append(columns)

    async def sizes(self) -> list[int]:
        """Send the table. The sizes of what was accepted."""
        self.ids.open(1)
        await self.tables.send(self.table, 0, "p")
        assert [one for columns in self.accepted for one in columns.ids] == [*range(ROWS)]
        assert array("q", range(ROWS)).tolist() == [one for columns in self.accepted for one in columns.timestamps]
        return [len(columns.values) for columns in self.accepted]


async def test_a_part_is_large_where_it_goes_to_several_intervals() -> None:
    limits = Limits(window_records=1_000_000)
    assert max(await Sending(routed(1, 4), limits=limits).sizes()) == 4 * DELIVERY_RECORDS * 7 // 8
    assert max(await Sending(routed(1, 1), limits=limits).sizes()) == DELIVERY_RECORDS
    assert max(await Sending(routed(1, 4)).sizes()) == 16_666, "a third of the window"


async def test_a_part_is_cut_where_consumers_have_joined() -> None:
    sending = Sending(routed(1, 4), routed(6, 4))
    first, *others = await sending.sizes()
    assert first == 16_666
    assert max(others) == 50_000 // 6 // 3
    assert sum(others) == ROWS - first


async def test_a_part_is_cut_where_intervals_have_merged() -> None:
    sending = Sending(routed(1, 4), routed(1, 1), limits=Limits(window_records=1_000_000))
    first, *others = await sending.sizes()
    assert (first, max(others)) == (4 * DELIVERY_RECORDS * 7 // 8, DELIVERY_RECORDS)


async def test_a_part_has_few_bytes_of_the_window() -> None:
    limits = Limits(window_records=1_000_000, window_bytes=3 << 20)
    sending = Sending(routed(1, 4), routed(2, 4), limits=limits, width=600)
    first, *others = await sending.sizes()
    assert 1_000 < first < (1 << 20) // 600
    assert 500 < max(others) < (1 << 19) // 600
    sending = Sending(routed(1, 4), limits=Limits(window_records=1_000_000), width=600)
    await sending.sizes()
    assert max(cast(Any, one.values).batch.nbytes for one in sending.accepted) > 3 * DELIVERY_BYTES
