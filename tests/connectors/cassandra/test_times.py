"""What arrives late changes nothing: each write has a time, and Cassandra keeps the newest (6.1, 6.2)."""

from __future__ import annotations

import asyncio
import re
import uuid
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from millwheel.connectors.cassandra import CassandraError
from millwheel.connectors.cassandra.progress import TIMES, TableProgress, next_progress
from millwheel.connectors.cassandra.writer import TableWriter
from millwheel.connectors.sink import SinkBatch, SinkShard
from tests.components import cassandra as shared_node
from tests.connectors.cassandra.given import Shop, opened, until_done, with_writers, written

FOR_EVER = float("inf")
PLACE = SinkShard("shop/sales-table", 0, 1, 5)
WHERE = "shop.millwheel_progress"
CHANGES = st.tuples(
    st.sampled_from(["a", "b", "cc"]),
    st.one_of(st.integers(0, 9), st.none(), st.just(UNSET)),
    st.one_of(st.sampled_from(["x", "y"]), st.none(), st.just(UNSET)),
    st.booleans(),
)
"""Of a row: its item, two columns, and whether it is deleted."""
FAILURES = st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 3))
"""Of an attempt that fails: its batch, how many rows it sends, and behind how many later batches it sends the rest."""


@pytest.mark.guarantee("G1", "G3", section="6.2")
def test_the_late_rows_of_a_former_process_change_nothing(shop: Shop) -> None:
    """It has got its time, and sends its rows when its successor is three batches ahead."""
    first = shop.batch(1, shop.sale("lamp", 10), shop.sale("vase", 20), shop.sale("bowl", 30))

    async def do(former: TableWriter[Any], present: TableWriter[Any]) -> None:
        changes, time = former.changes(first), await former.advance(first)
        await present.write(first)
        await present.write(shop.batch(2, shop.sale("lamp", 11)))
        await present.write(shop.batch(3, shop.sale("vase", gone=True)))
        await former.put(first, changes, time, FOR_EVER)
        with pytest.raises(CassandraError, match="has batch 3"):
            await former.write(first)

    with_writers(shop.sink(), shop.place(), shop.place(), do=do)
    assert shop.rows("cents") == {"lamp": 11, "bowl": 30}


@pytest.mark.guarantee("G1", "G3", "G15", section="6.1")
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    contents=st.lists(st.lists(CHANGES, min_size=1, max_size=4), min_size=1, max_size=4),
    failures=st.lists(FAILURES, max_size=4),
)
def test_rows_are_as_the_last_records_say(
    shop: Shop, contents: list[list[tuple[str, Any, Any, bool]]], failures: list[tuple[int, int, int]]
) -> None:
    """Also if processes die in the middle of a batch, and send the rest after their successors have gone on."""
    shop = replace(shop, name=f"t{uuid.uuid4().hex}")
    batches = [
        shop.batch(number, *(shop.sale(item, cents, note=note, gone=gone) for item, cents, note, gone in content))
        for number, content in enumerate(contents, 1)
    ]

    async def do(former: TableWriter[Any], present: TableWriter[Any]) -> None:
        late: list[tuple[int, Any]] = []
        for index, batch in enumerate(batches):
            for of, sent, behind in failures:
                if of == index:
                    changes, time = former.changes(batch), await former.advance(batch)
                    await former.put(batch, changes[:sent], time, FOR_EVER)
                    late.append((index + behind, (batch, changes[sent:], time, FOR_EVER)))
            await present.write(batch)
            for due, rest in late:
                if due == index:
                    await former.put(*rest)
        for due, rest in late:
            if due >= len(batches):
                await former.put(*rest)

    with_writers(shop.sink(), shop.place(), shop.place(), do=do)
    assert shop.rows() == _model(contents)


def _model(contents: list[list[tuple[str, Any, Any, bool]]]) -> dict[str, tuple[Any, Any]]:
    """The rows, if each record takes effect once and in order."""
    rows: dict[str, tuple[Any, Any]] = {}
    for item, cents, note, gone in (change for content in contents for change in content):
        former = rows.pop(item, (None, None))
        if not gone:
            rows[item] = (former[0] if cents is UNSET else cents, former[1] if note is UNSET else note)
    return rows


@pytest.mark.guarantee("G15")
def test_the_last_record_of_a_batch_counts(shop: Shop) -> None:
    """Of two writes at one time Cassandra would keep the larger values."""
    written(shop, shop.sink(), [shop.sale("lamp", 9, note="z"), shop.sale("lamp", 1, note="a")])
    assert shop.rows() == {"lamp": (1, "a")}


@pytest.mark.guarantee("G1", "G3")
def test_a_write_of_unknown_outcome_may_take_effect_late(shop: Shop) -> None:
    """A suspended node has the requests of a process that has given up. Then it serves them and its successor's."""
    (node,) = shared_node().nodes
    first, second, third = (shop.batch(number, shop.sale("lamp", 9 + number)) for number in (1, 2, 3))

    impatient = shop.sink(changed={"timeout_seconds": 1.0})

    async def do(former: TableWriter[Any]) -> None:
        await until_done(lambda: former.write(first))
        changes, time = former.changes(second), await until_done(lambda: former.advance(second))
        node.pause()
        try:
            for call in (former.put(second, changes, time, FOR_EVER), former.write(second)):
                with pytest.raises(CassandraError, match="tried again"):
                    await call
        finally:
            node.resume()
        present = await opened(impatient, shop.place())
        try:
            for batch in (second, third):
                await until_done(partial(present.write, batch))
        finally:
            await present.close()

    with_writers(impatient, shop.place(), do=do)
    assert shop.rows("cents") == {"lamp": 12}
    assert shop.progress()[:3] == (1, 3, "3")


@pytest.mark.guarantee("G1")
def test_a_process_that_stood_still_sends_no_old_rows(shop: Shop) -> None:
    batch = shop.batch(1, shop.sale("lamp", 10))

    async def do(writer: TableWriter[Any]) -> None:
        time = await writer.advance(batch)
        with pytest.raises(CassandraError, match=r"not sent within 39 s.*or Cassandra is slow.*batch_records="):
            await writer.put(batch, writer.changes(batch), time, 0.0)

    with_writers(shop.sink(), shop.place(), do=do)
    assert shop.rows() == {}


@pytest.mark.guarantee("G1", "G15")
def test_what_other_programs_write_counts_by_its_time(shop: Shop) -> None:
    """By the clocks, as between any two programs. A batch that comes again, or later, counts as new."""
    update = "UPDATE sink_tests.sales SET cents = %s WHERE test = %s AND shelf = 4 AND item = 'lamp'"

    async def do(writer: TableWriter[Any]) -> None:
        await writer.write(shop.batch(1, shop.sale("lamp", 10)))
        await asyncio.to_thread(shop.run, update, 50, shop.name)
        assert shop.rows("cents") == {"lamp": 50}
        await writer.write(shop.batch(1, shop.sale("lamp", 10)))
        assert shop.rows("cents") == {"lamp": 10}
        await writer.write(shop.batch(2, shop.sale("lamp", 11)))

    with_writers(shop.sink(), shop.place(), do=do)
    assert shop.rows("cents") == {"lamp": 11}


@pytest.mark.guarantee("G1", "G15")
def test_the_times_of_a_shard_grow_with_each_attempt(shop: Shop) -> None:
    times = []

    async def do(writer: TableWriter[Any]) -> None:
        for number in (1, 1, 2):
            await writer.write(shop.batch(number, shop.sale("lamp", number)))
            times.append(shop.progress()[3])
            assert shop.rows("writetime(cents)") == {"lamp": times[-1]}

    with_writers(shop.sink(), shop.place(), do=do)
    assert times == sorted(set(times))


@pytest.mark.guarantee("G1", "G15")
def test_a_clock_that_is_behind_sets_no_time_back() -> None:
    batch: SinkBatch[Any] = SinkBatch(2, [], "b", "a")
    there = TableProgress(5, 1, "a", 1_000)
    assert next_progress(there, PLACE, batch, 10, WHERE) == TableProgress(5, 2, "b", 1_000 + TIMES)
    assert next_progress(there, PLACE, batch, 5_000, WHERE) == TableProgress(5, 2, "b", 5_000)
    again = TableProgress(5, 2, "b", 5_000)
    assert next_progress(again, PLACE, batch, 5_000, WHERE) == TableProgress(5, 2, "b", 5_000 + TIMES)
    first: SinkBatch[Any] = SinkBatch(1, [], "c", "")
    later = next_progress(again, replace(PLACE, run=6), first, 10, WHERE)
    assert later == TableProgress(6, 1, "c", 5_000 + TIMES)


@pytest.mark.guarantee("G1", "G15")
@pytest.mark.parametrize("run", [5, 6])
def test_the_statement_of_an_error_lets_a_run_begin(run: int) -> None:
    """Another batch began the run before a restore, or a topology that is gone had a later run."""
    first: SinkBatch[Any] = SinkBatch(1, [], "b", "")
    with pytest.raises(CassandraError, match=f"UPDATE {WHERE}") as no:
        next_progress(TableProgress(run, 3, "a", 1_000), PLACE, first, 10, WHERE)
    stated = re.search(r"SET run = (\d+), number = (\d+), id = '(.*?)'", str(no.value))
    assert stated is not None
    there = TableProgress(int(stated[1]), int(stated[2]), stated[3], 1_000)
    assert next_progress(there, PLACE, first, 10, WHERE) == TableProgress(5, 1, "b", 1_000 + TIMES)
