"""What a source has read as columns: one entry, tables for the intervals of its keys, and rows where those are needed
(5.2, 6.1; G1, G2, G12, G13, G15)."""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.errors import NotInstalledError
from millwheel.rpc import columns as columns_module
from millwheel.rpc.columns import RecordColumns
from millwheel.sdk.effects import ProducedTable
from millwheel.store.contract import CorruptValueError
from millwheel.worker.dedup import OpaqueIds, PositionIds
from millwheel.worker.interval.column_run import UnsentTable
from millwheel.worker.interval.entry import (
    TABLES_FORMAT,
    IntervalEntry,
    ProductionRow,
    decode_entry,
    encode,
)
from millwheel.worker.interval.outbox.outbox import Outbox
from millwheel.worker.messages import Acknowledged, SendDelivery
from tests.worker.interval.driver import IntervalDriver
from tests.worker.interval.reads import CONSUMERS, locate
from tests.worker.interval.tables import LOG, MOST, SINK, TARGETS, ReadsTables, Row, table_of

FIRST = 1 << 24


def unsent(*tables: ProducedTable) -> list[UnsentTable]:
    found, position = list[UnsentTable](), FIRST
    for number, table in enumerate(tables):
        found.append(UnsentTable(position, b"split-%d" % number, table))
        position += len(table.records)
    return found


def entry_of(tables: list[UnsentTable]) -> bytes:
    stored = [one.stored() for one in tables]
    return encode(IntervalEntry(TABLES_FORMAT, 0, 0, [], [], [], [], [], [], [], (0,), tables=stored))


def rows_of(tables: list[UnsentTable]) -> list[ProductionRow]:
    return decode_entry(entry_of(tables), "it").productions


keys = st.text("abcz", max_size=2)
records = st.lists(st.tuples(keys, st.integers(-12, 12)), min_size=1, max_size=20)
tables = st.lists(records.map(lambda some: table_of(*some)), min_size=1, max_size=3)
cuts = st.lists(keys.map(str.encode), max_size=3, unique=True).map(sorted)


@pytest.mark.guarantee("G2", section="6.1.2")
@pytest.mark.guarantee("G12", section="6.2")
@given(tables)
def test_an_entry_has_the_rows_of_its_tables(made: list[ProducedTable]) -> None:
    found = rows_of(unsent(*made))
    assert [row[0] for row in found] == list(range(FIRST, FIRST + len(found)))
    one_by_one = [(b"split-%d" % at, one) for at, table in enumerate(made) for one in table.productions()]
    assert [row[1:6] for row in found] == [
        (producer, one.stream, one.value, one.timestamp, one.targets) for producer, one in one_by_one
    ]
    for row in found:
        value = msgspec.msgpack.decode(row[3])
        keys = value["key"].encode(), b"%d" % value["number"], b"", b"b"
        assert row[5] == tuple(zip((*CONSUMERS, LOG, SINK), keys, strict=True))
        assert row[4] == value["number"]


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.guarantee("G15", section="6.1.1")
@given(tables, cuts, st.frozensets(st.integers(0, 3), max_size=2))
def test_tables_reach_the_intervals_that_their_rows_reach(
    made: list[ProducedTable], cuts: list[bytes], missing: frozenset[int]
) -> None:
    def sent(rows: list[ProductionRow], some: list[UnsentTable]) -> tuple[dict[Any, list[Any]], Outbox]:
        outbox = Outbox(locate(cuts, missing))
        found: dict[Any, list[Any]] = {}
        for one in outbox.add(rows, tables=some):
            found.setdefault((one.consumer, one.journal), []).extend(outbox.rows_of(one))
            assert all(low < high for low, high in pairwise(one.positions))
            if some:
                between = range(one.positions[0], one.positions[-1] + 1)
                due = [
                    row[0] for row in all_rows for name, key in row[5]
                    if row[0] in between and name == one.consumer and locate(cuts, missing)(name, key) == one.journal
                ]  # fmt: skip
                assert one.complete
                assert list(one.positions) == due, "a range has all records of its interval"
        return found, outbox

    all_rows = rows_of(unsent(*made))
    together, outbox = sent([], unsent(*made))
    assert together == sent(all_rows, [])[0]
    assert outbox.unacked.records == sum(map(len, together.values()))


def alternating(where: list[bytes]) -> tuple[Outbox, dict[str, Any]]:
    """What is sent of a table whose keys alternate between two intervals."""
    outbox = Outbox(lambda consumer, key: locate(where)(consumer, key))
    read = table_of(*((key, at) for at, key in enumerate("ayaz" * 2)), targets=TARGETS[:1])
    outbox.add([], tables=unsent(read))
    return outbox, {one.journal: one for one, _ in outbox.take_ready()}


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.guarantee("G9", section="6.1.1")
def test_what_is_left_of_a_table_is_sent_as_rows() -> None:
    outbox, sent = alternating([b"m"])
    whole = list(sent["c.1.j0"].values)
    assert isinstance(sent["c.1.j0"].values, RecordColumns)
    outbox.acknowledged(sent["c.1.j0"].token, [1, 2])
    outbox.flows.begin_all()
    again = {one.journal: one for one, _ in outbox.take_ready()}
    part, rest = again["c.1.j0"], again["c.1.j1"]
    assert (part.values, list(part.positions), part.complete) == (whole[1:3], [FIRST + 2, FIRST + 4], False)
    assert isinstance(rest.values, RecordColumns)
    assert (list(rest.positions), rest.complete) == ([FIRST + at for at in (1, 3, 5, 7)], True)


@pytest.mark.guarantee("G15", section="6.1.1")
def test_an_unsent_table_follows_a_split_of_its_interval() -> None:
    where = [b"m"]
    outbox, sent = alternating(where)
    high = list(sent["c.1.j1"].values)
    where[:] = [b"m", b"n", b"z"]
    outbox.flows.begin_all()
    again = {one.journal: (list(one.values), one.complete) for one, _ in outbox.take_ready()}
    assert again["c.1.j2"] == ([high[0], high[2]], False)
    assert again["c.1.j3"] == ([high[1], high[3]], False)


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.guarantee("G8", section="6.1.1")
def test_a_consumer_with_one_key_gets_a_table_whole() -> None:
    outbox = Outbox(lambda consumer, key: locate([b"b", b"c"])(consumer, key))
    outbox.add([], tables=unsent(table_of(*((key, at) for at, key in enumerate("ayaz")), targets=TARGETS[3:])))
    ((sent, _),) = outbox.take_ready()
    assert (sent.journal, list(sent.positions), sent.complete) == ("table.1.j1", [FIRST + at for at in range(4)], True)
    assert isinstance(sent.values, RecordColumns)
    assert (sent.values.same, list(sent.keys)) == (b"b", [b"b"] * 4)


@pytest.mark.guarantee("G13", section="6.1.1")
def test_a_table_counts_with_its_bytes() -> None:
    outbox, sent = alternating([b"m"])
    sizes = {name: one.values.average * 4 for name, one in sent.items()}
    assert {name: one.bytes for name, one in sent.items()} == sizes
    assert (outbox.unacked.records, outbox.unacked.bytes) == (8, sum(sizes.values()))
    outbox.acknowledged(sent["c.1.j0"].token, [])
    outbox.acknowledged(sent["c.1.j1"].token, [3])
    assert outbox.unacked.records == 1


def broken(**changes: Any) -> bytes:
    (stored,) = [one.stored() for one in unsent(table_of(("a", 1), ("b", 2)))]
    wrong = msgspec.structs.replace(stored, **changes)
    return encode(IntervalEntry(TABLES_FORMAT, 0, 0, [], [], [], [], [], [], [], (0,), tables=[wrong]))


@pytest.mark.parametrize(
    "changes",
    [{"columns": b"\xff\xff"}, {"columns": b""}, {"targets": ((LOG, "other"),)}, {"targets": ((LOG, "none"),)}],
)
def test_a_damaged_table_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptValueError, match="not a journal entry"):
        decode_entry(broken(**changes), "it")


def test_a_table_without_pyarrow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    blob = entry_of(unsent(table_of(("a", 1))))
    monkeypatch.setattr(columns_module, "has_columns", lambda: False)
    with pytest.raises(NotInstalledError, match=r"^entry 7: it has .* install openmillwheel\[arrow\]"):
        decode_entry(blob, "entry 7")


def test_a_base_is_due_after_as_many_bytes_as_the_rows_of_tables() -> None:
    one = UnsentTable(FIRST, b"split", table_of(*((f"key-{at}", at) for at in range(500)), targets=TARGETS[::2]))
    rows = len(encode(list(one.stored().rows())))
    assert 0.8 < (len(one.stored().columns) + one.spared) / rows < 1.4


def test_rows_of_many_small_columns_count_with_their_names() -> None:
    columns = {f"is_{at:02}": [True] * 500 for at in range(18)} | {"key": [f"key {at}" for at in range(500)]}
    records = RecordColumns(pa.record_batch(columns), array("q", range(500)))
    one = UnsentTable(FIRST, b"split", ProducedTable("s", records, TARGETS[:1]))
    rows = len(encode(list(one.stored().rows())))
    assert 0.9 < (len(one.stored().columns) + one.spared) / rows < 1.4


def reading(*, columns: bool = True, entries: list[bytes] | None = None, strong: bool = True) -> IntervalDriver:
    outputs = {"out": Row, "other": str, "late": tuple[str, str]}
    driver = IntervalDriver(ReadsTables(), entries=entries, strong=strong, outputs=outputs, locate=locate([b"m"]))
    driver.state.scope.outputs["out"].key_columns = TARGETS
    object.__setattr__(driver.state.config, "result_columns", columns)
    return driver


def deliveries(driver: IntervalDriver) -> dict[str, list[tuple[Any, ...]]]:
    """What is sent, by consumer: key, value, time and position of each record."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for send in driver.take(SendDelivery):
        one = send.delivery
        assert isinstance(one.ids, PositionIds)
        rows = zip(one.keys, one.values, one.timestamps, one.ids.positions, strict=True)
        found.setdefault(one.consumer, []).extend(rows)
        driver.handle(Acknowledged(one.token))
    return {name: sorted(each, key=lambda one: one[3]) for name, each in found.items()}


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.guarantee("G9", section="6.1.1")
@pytest.mark.guarantee("G12", section="6.2")
@pytest.mark.parametrize("columns", [True, False])
def test_a_successor_sends_the_rows_of_a_table_with_their_ids(columns: bool) -> None:
    driver = reading(columns=columns)
    driver.deliver(("p", "x", 5), ("q", "row", 5), ("r", "w", 5))
    driver.commit()
    entry = msgspec.msgpack.decode(driver.entries[0], type=IntervalEntry)
    made = entry.format, len(entry.tables), len(entry.productions)
    assert made == ((TABLES_FORMAT, 2, 3) if columns else (1, 0, 11))
    sent = deliveries(driver)
    assert sent == deliveries(reading(entries=driver.entries))
    assert [key for key, *_ in sent[CONSUMERS[0]]] == [f"{key}{what}".encode() for what in "xw" for key in "ayaz"]
    assert [key for key, *_ in sent[CONSUMERS[1]]] == [b"14", b"13", b"12", b"11"] * 2
    assert sorted(at for *_, at in [*sent[LOG], *sent["sink:other"]]) == list(range(FIRST, FIRST + 11))


@pytest.mark.guarantee("G10", section="6.1.3")
def test_weak_tables_are_rows_with_ids_of_their_own() -> None:
    driver = reading(strong=False)
    driver.deliver(("p", "x", 5))
    sent = [one.delivery for one in driver.take(SendDelivery)]
    assert all(isinstance(one.ids, OpaqueIds) for one in sent)
    assert sum(len(one.keys) for one in sent) == 4 * 4 + 1


@pytest.mark.parametrize(
    "change",
    [
        {"key_columns": None},
        {"key_columns": ((CONSUMERS[0], "none"),)},
        {"key_columns": ((CONSUMERS[0], "other"),)},
        {"most": 100},
        {"long": True},
        {"wide": 2_000},
    ],
)
def test_what_cannot_go_by_columns_produces_nothing(change: dict[str, Any]) -> None:
    driver = reading()
    binding = driver.state.scope.outputs["out"]
    if "key_columns" in change:
        binding.key_columns = change["key_columns"]
    cell = driver.state.cells.get(b"p")
    assert cell is not None
    context: mw.Context[Any] = mw.Context(b"p", cell, driver.state.scope)
    table = table_of(("x" * 5_000 if "long" in change else "x", 2))
    batch = table.records.batch
    for number in range(change.get("wide", 0)):
        batch = batch.append_column(f"other {number}", batch.column(0))
    records = RecordColumns(batch, table.records.timestamps)
    assert not context._produce_table(binding, records, change.get("most", MOST))  # noqa: SLF001  # as readers do
    assert (context._read, driver.state.scope.produced_bytes) == (None, 0)  # noqa: SLF001
