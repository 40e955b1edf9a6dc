"""When small tables are gathered, and when they are left to the usual way (5.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa
import pytest

from millwheel.client.injector.admission import SendTurns
from millwheel.client.injector.core import InjectorCore
from millwheel.client.injector.ids import RecordIds
from millwheel.client.injector.messages import InjectorEvent, KeyedRecords, Limits, RoutingArrived
from millwheel.client.injector.routing import ConsumerRouting, Route, StreamRouting
from millwheel.client.injector.settings import InjectorSettings
from millwheel.client.injector.small_tables import SmallTable
from millwheel.client.injector.tables import TableAdmission
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS
from millwheel.model.limits import MAX_KEY_BYTES

pytestmark = pytest.mark.guarantee("G13", section="5.2")
NAME = IncarnationId("c")


def routed(revision: int) -> StreamRouting:
    consumer = ConsumerRouting(NAME, [Route(ALL_KEYS, "j", "a")], computation="c", fields=("key",))
    return StreamRouting(revision, {NAME: consumer}, column_batches=True)


class Gathering:
    """A session and an admission around a core that no worker answers."""

    traced = asleep = False

    def __init__(self, limits: Limits) -> None:
        self.core = InjectorCore("s", "p", limits=limits)
        self.turns, self.ids = SendTurns(), RecordIds("s", "p", "p")
        self.ids.open(1)
        self.step(RoutingArrived(routed(1)))
        self.tables = TableAdmission(cast(Any, self), cast(Any, self), InjectorSettings(limits=limits))
        self.intake = self.tables.intake

    @property
    def routing(self) -> StreamRouting:
        assert self.core.routing is not None
        return self.core.routing

    def drain(self) -> None: ...

    def step(self, event: InjectorEvent) -> None:
        self.core.step(event, 0)

    def pass_on(self, take: Callable[[], KeyedRecords]) -> bool:
        self.step(take())
        return True

    def table(self, rows: int, key: str = "k") -> SmallTable:
        data = pa.table({"key": [key] * rows, "at": range(1, 1 + rows)})
        self.tables.read(data, "at", None)
        found = self.tables.read(data, "at", None)
        assert isinstance(found, SmallTable)
        return found

    def put(self, *rows: int) -> list[bool]:
        return [self.intake.put(self.table(one), None, "", None) for one in rows]


async def test_what_is_gathered_fits_into_the_window() -> None:
    """What is gathered is no more than a third of the window. Without room for it, a table waits."""
    session = Gathering(Limits(window_records=30))
    assert session.put(6, 6, 10, 6, 6) == [True, True, True, True, False]
    session.intake.drain()
    assert (session.core.accepted, session.core.room()) == (28, 2)
    assert session.put(3, 2, 1) == [False, True, False]


async def test_a_table_above_the_bounds_of_a_part_is_left_alone() -> None:
    session = Gathering(Limits(window_records=30))
    assert session.put(11, 10) == [False, True]


async def test_a_table_with_a_long_key_goes_by_rows() -> None:
    """Its row gets its error there. A table like it, with short keys, was looked at before."""
    session = Gathering(Limits())
    assert session.put(3) == [True]
    assert not session.intake.put(session.table(1, "x" * (MAX_KEY_BYTES + 1)), None, "", None)
    assert session.intake.put(session.table(1, "x" * MAX_KEY_BYTES), None, "", None)


async def test_keys_are_looked_for_again_by_another_routing() -> None:
    """The second routing has a consumer whose key is no column."""
    session = Gathering(Limits())
    assert session.put(3) == [True]
    session.intake.drain()
    other = ConsumerRouting(IncarnationId("d"), [Route(ALL_KEYS, "i", "a")], computation="d", fields=("other",))
    session.step(
        RoutingArrived(StreamRouting(2, {**routed(2).consumers, other.incarnation: other}, column_batches=True))
    )
    assert session.put(3) == [False]
