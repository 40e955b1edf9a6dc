"""Small tables that wait while others are on their way: they share a delivery (5.2, 6.1.1)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel.client.injector.column_division import DELIVERY_BYTES, DELIVERY_RECORDS
from millwheel.client.injector.core import InjectorCore
from millwheel.client.injector.ids import IdKind, IdScope
from millwheel.client.injector.messages import (
    ConnectionLost,
    ConnectionOpened,
    DeliveryAnswered,
    InjectorEffect,
    KeyedRecords,
    Limits,
    SendBatch,
    Tick,
    WatermarkDeclared,
)
from millwheel.client.injector.routing import Route, StreamRouting
from millwheel.model.keys import KeyInterval
from millwheel.rpc.columns import RecordColumns
from tests.injectors.test_core import ACKED, FULL, SCOPE, add, one, opened, routing, sends, step

pytestmark = pytest.mark.guarantee("G1", section="6.1.1")

LINGER = Limits().linger
SPLIT = routing(one(Route(KeyInterval(b"", b"k3"), "j1", "a"), Route(KeyInterval(b"k3"), "j2", "a")))


def put(
    core: InjectorCore,
    first: int,
    count: int = 1,
    now: int = 0,
    *,
    scope: IdScope = SCOPE,
    keys: Sequence[str] = (),
    ids: Sequence[Any] = (),
    **more: list[Any],
) -> list[InjectorEffect]:
    """Send a table: record n has the value n."""
    numbers = range(first, first + count)
    batch = pa.record_batch({"key": list(keys) or ["k"] * count, "number": list(numbers), **more})
    records = RecordColumns(batch, array("q", [1_000 + number for number in numbers]), "key")
    assert core.routing is not None
    columns = {name: records.keys() for name in core.routing.consumers}
    return step(core, KeyedRecords(records, records.timestamps, columns, scope, ids or numbers), now)


def rows(send: SendBatch) -> list[tuple[Any, bytes, bytes, int]]:
    return list(zip(send.ids, send.keys, send.values, send.timestamps, strict=True))


def ranged(limits: Limits | None = None, of: StreamRouting | None = None) -> InjectorCore:
    core = opened(limits or Limits(), of or routing())
    core.outbound.ranges = True
    return core


def acked(core: InjectorCore, *answered: SendBatch, now: int = 1) -> list[SendBatch]:
    found: list[SendBatch] = []
    for send in answered:
        found += sends(step(core, DeliveryAnswered((send.token,), ACKED), now))
    return found


def test_tables_that_wait_for_an_ack_share_a_delivery() -> None:
    core = ranged()
    (first,) = sends(put(core, 0, 2))
    assert not put(core, 2, 3, 10)
    assert not put(core, 5, 1, 20)
    assert (core.unacked, core.oldest_unacked(), core.acknowledged(SCOPE)) == (6, 0, 0)
    (both,) = acked(core, first)
    assert isinstance(both.values, RecordColumns)
    assert type(both.ids).__name__ == "range", "a run costs one number in the message"
    assert (list(both.ids), both.complete) == ([2, 3, 4, 5], True)
    assert list(both.timestamps) == [1_002, 1_003, 1_004, 1_005]
    assert both.values.batch["number"].to_pylist() == [2, 3, 4, 5]
    assert not acked(core, both)
    assert (core.unacked, core.unacked_bytes, core.acknowledged(SCOPE)) == (0, 0, 6)


def test_a_table_waits_no_longer_than_the_linger() -> None:
    core = ranged()
    put(core, 0)
    put(core, 1, now=100)
    assert core.next_deadline() == LINGER
    (late,) = sends(step(core, Tick(), LINGER))
    assert list(late.ids) == [1]


@pytest.mark.guarantee("G7")
def test_joined_tables_hold_the_watermark_at_their_oldest_record() -> None:
    core = ranged()
    (first,) = sends(put(core, 0))
    put(core, 1)
    put(core, 2)
    step(core, WatermarkDeclared(5_000))
    (both,) = acked(core, first)
    assert core.published.watermark == 1_001
    acked(core, both)
    assert core.published.watermark == 5_000


def test_tables_with_other_columns_are_not_joined() -> None:
    core = ranged()
    put(core, 0)
    effects = [*put(core, 1), *put(core, 2, more=["x"]), *put(core, 3, more=["y"]), *add(core, [4, 5], at=2_000)]
    found = sends([*effects, *put(core, 6), *step(core, Tick(), LINGER)])
    assert [list(send.ids) for send in found] == [[1], [2, 3], [4, 5], [6]]
    assert [isinstance(send.values, RecordColumns) for send in found] == [True, True, False, True]


@pytest.mark.guarantee("G13")
def test_joined_tables_are_no_larger_than_a_delivery() -> None:
    core = ranged(Limits(batch_records=DELIVERY_RECORDS, window_records=1 << 20))
    put(core, 0)
    effects = [effect for at in range(9) for effect in put(core, 1 + 1_000 * at, 1_000)]
    assert [len(send.ids) for send in sends([*effects, *step(core, Tick(), LINGER)])] == [8_000, 1_000]


@pytest.mark.guarantee("G13")
def test_joined_tables_have_no_more_bytes_than_a_delivery() -> None:
    core = ranged(Limits(window_records=1 << 20))
    (first,) = sends(put(core, 0))
    effects = [effect for at in range(12) for effect in put(core, 1 + at, more=["x" * 200_000])]
    joined = [*sends(effects), *acked(core, first)]
    assert [len(send.ids) for send in joined] == [3, 3, 3, 3]
    assert all(send.values.batch.nbytes < DELIVERY_BYTES for send in joined)  # type: ignore[attr-defined]


def test_a_table_of_the_usual_size_goes_at_once() -> None:
    core = ranged()
    many = Limits().batch_records
    assert [len(send.ids) for at in range(3) for send in sends(put(core, many * at, many))] == [many] * 3


def test_a_gap_between_joined_tables_is_no_range() -> None:
    core = ranged()
    (first,) = sends(put(core, 0))
    put(core, 1, 2)
    put(core, 4, 2)
    (both,) = acked(core, first)
    assert (list(both.ids), both.complete) == ([1, 2, 4, 5], False)


def test_ids_of_the_users_are_joined() -> None:
    core = ranged()
    scope = IdScope(IdKind.BATCH, "load", 1)
    (first,) = sends(put(core, 0, scope=scope, ids=[b"a"]))
    put(core, 1, 2, scope=scope, ids=[b"b", b"c"])
    put(core, 3, scope=scope, ids=[b"d"])
    (both,) = acked(core, first)
    assert both.ids == [b"b", b"c", b"d"]


def test_a_joined_delivery_comes_again_as_it_was() -> None:
    core = ranged()
    (first,) = sends(put(core, 0))
    put(core, 1, 2)
    put(core, 3, 2)
    (both,) = acked(core, first)
    step(core, ConnectionLost("a"), 2)
    (again,) = sends(step(core, ConnectionOpened("a"), 3))
    assert (rows(again), again.complete) == (rows(both), True)
    (part,) = sends(step(core, DeliveryAnswered((again.token,), FULL, [1, 2]), 4) + step(core, Tick(), 2_000_000))
    assert (list(part.ids), part.complete) == ([2, 3], False)


def test_tables_that_cannot_be_joined_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core is as it was, and joins them when it sends the next time."""

    def without_memory(batches: Sequence[Any]) -> Any:
        raise MemoryError

    core = ranged()
    (first,) = sends(put(core, 0))
    put(core, 1)
    put(core, 2)
    with monkeypatch.context() as patched:
        patched.setattr(pa, "concat_batches", without_memory)
        with pytest.raises(MemoryError):
            core.step(DeliveryAnswered((first.token,), ACKED), 1)
    core.check_invariants()
    (both,) = sends(step(core, Tick(), LINGER))
    assert list(both.ids) == [1, 2]
    assert not acked(core, both)
    assert not core.unacked


tables = st.lists(
    st.lists(st.tuples(st.integers(0, 5), st.none() | st.text(max_size=3)), min_size=1, max_size=5), max_size=8
)


@given(divided=tables, gaps=st.lists(st.integers(0, 1), min_size=8, max_size=8))
@settings(max_examples=60, deadline=None)
def test_joined_tables_have_the_same_records(divided: list[list[tuple[int, str | None]]], gaps: list[int]) -> None:
    """A core that joins, against one that never waits: each interval gets the same records in the same order."""

    def delivered(limits: Limits) -> dict[str, list[tuple[Any, bytes, bytes, int]]]:
        core = ranged(limits, SPLIT)
        found: dict[str, list[tuple[Any, bytes, bytes, int]]] = {}
        open_sends, position = sends(put(core, 0, 2, keys=["k0", "k4"], text=[None, "x"])), 2
        for table, gap in zip(divided, gaps, strict=False):
            position += gap
            keys, texts = [f"k{key}" for key, _ in table], pa.array([text for _, text in table], pa.string())
            open_sends += sends(put(core, position, len(table), keys=keys, text=texts))
            position += len(table)
        while open_sends:
            send = open_sends.pop(0)
            found.setdefault(send.journal, []).extend(rows(send))
            open_sends += acked(core, send)
        assert not core.unacked
        return found

    joined, single = delivered(Limits()), delivered(Limits(linger=0))
    assert joined == single
