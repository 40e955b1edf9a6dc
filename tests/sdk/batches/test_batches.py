"""What a hook of many records reads and produces, and which mistakes are found (sections 4.1, 5.1)."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import millwheel as mw
from millwheel.rpc.columns import RecordColumns
from millwheel.sdk.batches.records import RecordForm
from millwheel.sdk.batches.rows import BatchRows
from millwheel.sdk.codecs import codec_for
from millwheel.sdk.column_fields import column_fields
from millwheel.sdk.compiled import compile_computation
from millwheel.testing import TopologyHarness

NOON = mw.Timestamp(1_767_268_800_000_000)


class Trade(msgspec.Struct):
    symbol: str
    price: float
    size: int = 1
    fee: float | None = None
    buys: bool = False
    at: mw.Timestamp = NOON
    weights: NDArray[np.float64] = msgspec.field(default_factory=lambda: np.zeros(2))
    extra: Any = None


@dataclass
class Score:
    symbol: str
    score: float


Hook = Callable[[mw.BatchContext[int], mw.RecordBatch[Any]], None]


class Calling(mw.BatchComputation[Any, int]):
    """Calls a function for each batch."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook

    def process_batch(self, ctx: mw.BatchContext[int], batch: mw.RecordBatch[Any]) -> None:
        self.hook(ctx, batch)

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        ctx.produce("scores", Score(ctx.key, float(ctx.state)))


def harness_of(hook: Hook, record_type: Any = Trade) -> TopologyHarness:
    topology = mw.Topology("trades")
    topology.source("trades", record_type)
    outputs = {"scores": Score, "numbers": float, "arrays": NDArray[np.float64], "anything": Any}
    topology.add(Calling(hook), name="calling", inputs={"trades": mw.key("symbol")}, outputs=outputs)
    return TopologyHarness(topology)


def send(harness: TopologyHarness, *values: Any) -> None:
    harness.send_all("trades", [(value, mw.Timestamp(NOON + place)) for place, value in enumerate(values)])


def read(hook: Callable[[mw.RecordBatch[Any]], Any], *values: Any, record_type: Any = Trade) -> Any:
    """What a function reads of a batch of these values."""
    found: list[Any] = []
    with harness_of(lambda ctx, batch: found.append(hook(batch)), record_type) as harness:
        send(harness, *values)
    return found[0]


TRADES = (Trade("a", 1.5, 2), Trade("b", 2.5, 3, 0.5, True), Trade("a", 3.5, 4))


@pytest.mark.parametrize(
    ("field", "dtype", "values"),
    [
        ("price", np.float64, [1.5, 2.5, 3.5]),
        ("size", np.int64, [2, 3, 4]),
        ("buys", np.bool_, [False, True, False]),
        ("at", np.int64, [NOON] * 3),
        ("symbol", np.object_, ["a", "b", "a"]),
        ("extra", np.object_, [None] * 3),
        ("weights", np.float64, [[0.0, 0.0]] * 3),
    ],
)
def test_the_type_of_a_field_gives_the_type_of_its_column(field: str, dtype: Any, values: list[Any]) -> None:
    column = read(lambda batch: batch.column(field), *TRADES)
    assert column.dtype == dtype
    assert column.tolist() == values


def test_a_missing_float_is_nan() -> None:
    fees = read(lambda batch: batch.column("fee"), *TRADES)
    assert np.isnan(fees).tolist() == [True, False, True]


def test_a_batch_has_keys_times_and_values() -> None:
    def look(batch: mw.RecordBatch[Any]) -> Any:
        rows = {key: found.tolist() for key, found in batch.rows_by_key().items()}
        return len(batch), batch.stream, batch.keys, batch.timestamps.tolist(), batch.late.tolist(), batch.values, rows

    count, stream, keys, times, late, values, rows = read(look, *TRADES)
    assert (count, stream, keys) == (3, "trades", ["a", "b", "a"])
    assert (times, late) == ([NOON, NOON + 1, NOON + 2], [False] * 3)
    assert [one.price for one in values] == [1.5, 2.5, 3.5]
    assert rows == {"a": [0, 2], "b": [1]}


def test_values_without_fields_are_a_column() -> None:
    topology = mw.Topology("numbers")
    found: list[Any] = []
    calling = Calling(lambda ctx, batch: found.append(batch.column()))
    topology.source("numbers", float).key_by(mw.everything).process("calling", calling, {"scores": Score})
    with TopologyHarness(topology) as harness:
        harness.send_all("numbers", [(0.5, NOON), (1.5, NOON)])
    assert found[0].tolist() == [0.5, 1.5]


def test_a_batch_is_a_table() -> None:
    class Plain(msgspec.Struct, rename="camel"):
        symbol: str
        last_price: float
        fee: float | None = None

    values = Plain("a", 1.5), Plain("b", 2.5, 0.5)
    table = read(lambda batch: batch.to_arrow(), *values, record_type=Plain)
    assert table.schema == pa.schema([("symbol", pa.string()), ("lastPrice", pa.float64()), ("fee", pa.float64())])
    assert table.to_pylist()[1] == {"symbol": "b", "lastPrice": 2.5, "fee": 0.5}
    frame = read(lambda batch: batch.to_pandas(), *values, record_type=Plain)
    assert frame["lastPrice"].tolist() == [1.5, 2.5]


def test_values_that_a_function_makes_are_a_table() -> None:
    found: list[Any] = []
    topology = mw.Topology("trades")
    scores = topology.source("trades", Trade).map(lambda trade: Score(trade.symbol, trade.price), Score)
    calling = Calling(lambda ctx, batch: found.append((batch.to_arrow().to_pylist(), batch.column("score").tolist())))
    scores.key_by("symbol").process("calling", calling, {})
    with TopologyHarness(topology) as harness:
        send(harness, *TRADES[:2])
    rows = [{"symbol": "a", "score": 1.5}, {"symbol": "b", "score": 2.5}]
    assert found == [(rows, [1.5, 2.5])]


@pytest.mark.parametrize(
    ("hook", "error"),
    [
        (lambda ctx, batch: batch.column("cost"), "stream 'trades' has records of Trade, which has no field 'cost'"),
        (lambda ctx, batch: ctx.states["z"], "key 'z' has no record in this batch"),
        (lambda ctx, batch: ctx.at(9), "the batch has rows 0 to 0, and no row 9"),
        (
            lambda ctx, batch: ctx.produce("numbers", [1.0, 2.0]),
            "takes a value for each record of the batch: 1, and not 2",
        ),
        (lambda ctx, batch: ctx.produce("numbers", [1.0], rows=[-1]), "rows= takes numbers from 0 to 0"),
        (lambda ctx, batch: ctx.produce("numbers", [1.0], rows=[True, True]), "2 truth values for the 1 records"),
        (lambda ctx, batch: ctx.produce("numbers", [1.0], timestamps=[]), "a timestamp for each of 1 values, not 0"),
        (lambda ctx, batch: ctx.produce("anything", "abc"), r"produce\('anything'\) takes a list .* not one str"),
        (lambda ctx, batch: ctx.produce("numbers", [1.0], rows=0), r"produce\('numbers', rows=\) takes a list"),
        (lambda ctx, batch: ctx.produce("anything", {"score": 1.0}), "column 'score', takes a list or a column"),
        (lambda ctx, batch: ctx.produce("scores", Score("a", 1.0)), "not one Score"),
        (lambda ctx, batch: ctx.produce("scores", {"score": [1.0]}), "the columns score make no Score"),
        (
            lambda ctx, batch: ctx.produce("scores", {"score": [1.0], "symbol": []}),
            "of a table have one length",
        ),
    ],
)
def test_a_mistake_in_a_hook_says_what_to_do(hook: Hook, error: str) -> None:
    with harness_of(hook) as harness, pytest.raises(mw.UsageError, match=error):
        send(harness, TRADES[0])


def test_an_unknown_output_is_named() -> None:
    with (
        harness_of(lambda ctx, batch: ctx.produce("nowhere", [1])) as harness,
        pytest.raises(mw.UndeclaredStreamError, match="nowhere"),
    ):
        send(harness, TRADES[0])


def test_an_integer_beyond_64_bits_is_no_column() -> None:
    with (
        harness_of(lambda ctx, batch: print(batch.column("size"))) as harness,
        pytest.raises(mw.UsageError, match=r"batch.column\('size'\) is no column of NumPy: .* Take batch.values"),
    ):
        send(harness, Trade("a", 1.0, 2**63))


@pytest.mark.parametrize(
    "given",
    [
        {"symbol": ["a", "b", "a"], "score": np.array([1.0, 2.0, 3.0])},
        pd.DataFrame({"symbol": ["a", "b", "a"], "score": [1.0, 2.0, 3.0]}),
        pa.table({"symbol": ["a", "b", "a"], "score": [1.0, 2.0, 3.0]}),
        [Score("a", 1.0), Score("b", 2.0), Score("a", 3.0)],
    ],
    ids=["mapping", "pandas", "arrow", "list"],
)
def test_columns_and_values_are_produced_alike(given: Any) -> None:
    with harness_of(lambda ctx, batch: ctx.produce("scores", given)) as harness:
        send(harness, *TRADES)
        found = sorted(harness.produced("scores"), key=lambda one: one.timestamp)  # keys have no order among them
        assert [(one.value, one.timestamp) for one in found] == [
            (Score(symbol, score), NOON + place)
            for place, (symbol, score) in enumerate(zip("aba", (1.0, 2.0, 3.0), strict=True))
        ]


def test_rows_say_what_causes_a_production() -> None:
    def hook(ctx: mw.BatchContext[int], batch: mw.RecordBatch[Any]) -> None:
        high = batch.column("price") > 2
        ctx.produce("numbers", batch.column("price")[high], rows=high)
        ctx.produce("arrays", batch.column("weights")[[2]], rows=np.array([2]), timestamps=[NOON + 60])

    with harness_of(hook) as harness:
        send(harness, *TRADES)
        numbers = sorted((one.timestamp, one.value) for one in harness.produced("numbers"))
        assert numbers == [(NOON + 1, 2.5), (NOON + 2, 3.5)]
        assert [(one.value.tolist(), one.timestamp) for one in harness.produced("arrays")] == [([0.0, 0.0], NOON + 60)]


@pytest.mark.guarantee("G7", section="5.2")
def test_no_production_is_before_its_record() -> None:
    with (
        harness_of(
            lambda ctx, batch: ctx.produce("numbers", [1.0], rows=[len(batch) - 1], timestamps=[NOON])
        ) as harness,
        pytest.raises(mw.ProductionTimestampError),
    ):
        send(harness, *TRADES)


def test_numbers_of_a_loop_over_columns_are_taken() -> None:
    def hook(ctx: mw.BatchContext[int], batch: mw.RecordBatch[Any]) -> None:
        rows = [row for found in batch.rows_by_key().values() for row in found]
        ctx.produce("anything", [int(row) for row in rows], rows=rows)
        high = [price > 2 for price in batch.column("price")]
        ctx.produce("anything", [size * 2 for size in batch.column("size")][1:], rows=high)

    with harness_of(hook) as harness:
        send(harness, *TRADES)
        found = sorted((one.timestamp - NOON, one.value) for one in harness.produced("anything"))
        assert found == [(0, 0), (1, 1), (1, 6), (2, 2), (2, 8)]


@pytest.mark.guarantee("G15", section="4.2")
@pytest.mark.parametrize("together", [True, False])
def test_what_a_key_produces_has_the_order_of_its_rows(together: bool) -> None:
    def hook(ctx: mw.BatchContext[int], batch: mw.RecordBatch[Any]) -> None:
        sizes = batch.column("size").tolist()
        for row, size in list(enumerate(sizes))[::-1]:
            ctx.at(row).produce("anything", ("at", size))
        ctx.produce("anything", [("all", size) for size in sizes])
        times, rows = [NOON + 60] * len(sizes), range(len(sizes))[::-1]
        ctx.produce("anything", [("rows", size) for size in sizes[::-1]], rows=rows, timestamps=times)

    with harness_of(hook) as harness:
        trades = [Trade("a", 1.0, size) for size in range(3)]
        for some in [trades] if together else [[trade] for trade in trades]:
            send(harness, *some)
        values = [tuple(value) for value in harness.values("anything")]
        assert values == [(name, size) for size in range(3) for name in ("at", "all", "rows")]


@pytest.mark.guarantee("G7", section="5.2")
def test_a_context_of_a_row_stays_as_it_is() -> None:
    """Neither the clock nor ``produce`` move it to another row of its key."""

    def hook(ctx: mw.BatchContext[int], batch: mw.RecordBatch[Any]) -> None:
        last = ctx.at(len(batch) - 1)
        assert ctx.now
        ctx.produce("numbers", batch.column("price"), timestamps=[NOON + 60] * len(batch))
        ctx.produce("numbers", batch.column("price"))
        last.set_timer(mw.Timestamp(ctx.now + 10), domain=mw.TimeDomain.PROCESSING_TIME)
        last.produce("anything", 1)

    with harness_of(hook) as harness:
        send(harness, *[Trade("a", 1.0)] * 3)
        assert [one.timestamp - NOON for one in harness.produced("anything")] == [2]
        harness.advance(mw.Timestamp(NOON + 10))
        assert harness.watermark("calling") == NOON + 2


def test_states_and_timers_are_those_of_keys() -> None:
    def hook(ctx: mw.BatchContext[int], batch: mw.RecordBatch[Any]) -> None:
        assert ([*ctx.states], len(ctx.states), "z" in ctx.states) == (["a", "b"], 2, False)
        for key, rows in batch.rows_by_key().items():
            ctx.states[key] += len(rows)
            ctx.at(int(rows[-1])).set_timer(mw.Timestamp(NOON + 10))
        if ctx.states["b"] == 2:
            del ctx.states["b"]

    with harness_of(hook) as harness:
        send(harness, *TRADES)
        assert (harness.state("calling", "a"), harness.state("calling", "b")) == (2, 1)
        harness.crash()
        send(harness, *TRADES)
        assert (harness.state("calling", "a"), harness.state("calling", "b")) == (4, None)
        harness.advance(mw.Timestamp(NOON + 20))
        assert harness.values("scores") == [Score("a", 4.0), Score("b", 0.0)]


def test_a_step_of_the_library_passes_single_records_on() -> None:
    found: list[Any] = []
    topology = mw.Topology("trades")
    calling = Calling(lambda ctx, batch: found.append((batch.column("price").tolist(), [*ctx.states])))
    topology.source("trades", Trade).key_by("symbol").ordered_by_time().process("calling", calling, {})
    with TopologyHarness(topology) as harness:
        send(harness, *TRADES)
        harness.finish()
    assert sorted(found) == [([1.5], ["a"]), ([2.5], ["b"]), ([3.5], ["a"])]


class Async(mw.BatchComputation[Trade]):
    async def process_batch(self, ctx: mw.BatchContext[None], batch: mw.RecordBatch[Trade]) -> None:  # type: ignore[override]
        """Nothing awaits it."""


class Both(mw.BatchComputation[Trade]):
    max_records = 0
    call_seconds = 5.0

    def process_batch(self, ctx: mw.BatchContext[None], batch: mw.RecordBatch[Trade]) -> None:
        """One hook."""

    def process_record(self, ctx: mw.Context[None], record: mw.Record[Trade]) -> None:
        """Another hook."""


class Misplaced(mw.Computation[Trade]):
    def process_batch(self, ctx: mw.BatchContext[None], batch: mw.RecordBatch[Trade]) -> None:
        """Nothing calls it."""


class Growing(mw.GrowingState):
    trades: mw.ListState[int]


class Grows(mw.BatchComputation[Trade, Growing]):
    def process_batch(self, ctx: mw.BatchContext[Growing], batch: mw.RecordBatch[Trade]) -> None:
        """Its state has pages."""


@pytest.mark.parametrize(
    ("computation", "options", "problem"),
    [
        (Async, {}, "process_batch is `async def`, and all its keys would wait"),
        (Both, {}, "it defines process_batch and process_record, and only one of them would run"),
        (Both, {}, "max_records is a whole number from 1 to 8,192, not 0"),
        (Both, {}, "call_seconds is a number of seconds over 0, and at most 2, not 5.0"),
        (Misplaced, {}, "does not define process_record.*derive it from millwheel.BatchComputation"),
        (Grows, {}, "process_batch has no growing states"),
        (Calling(lambda ctx, batch: None), {"strong": False}, "strong=False is for productions that depend on one"),
    ],
)
def test_mistakes_are_found_before_anything_runs(computation: Any, options: dict[str, Any], problem: str) -> None:
    topology = mw.Topology("trades")
    topology.source("trades", Trade)
    topology.add(computation, name="one", inputs={"trades": mw.key("symbol")}, **options)
    with pytest.raises(mw.TopologyError, match=problem):
        topology.check()


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with (
        harness_of(lambda ctx, batch: batch.to_polars()) as harness,
        pytest.raises(mw.UsageError, match=r"batch.to_polars\(\) needs polars, .*: install polars at each worker"),
    ):
        send(harness, TRADES[0])


class Plain(msgspec.Struct):
    symbol: str
    price: float
    size: int = 1


def test_fields_that_are_not_encoded_are_in_tables() -> None:
    class Short(msgspec.Struct, omit_defaults=True, rename="camel"):
        symbol: str
        last_size: int = 1
        fees: list[float] = []
        note: str | None = "none"

    values = Short("a"), Short("b", 2, [0.5], None)
    assert read(lambda batch: batch.to_arrow(), *values, record_type=Short).to_pylist() == [
        {"symbol": "a", "lastSize": 1, "fees": [], "note": "none"},
        {"symbol": "b", "lastSize": 2, "fees": [0.5], "note": None},
    ]


@pytest.mark.parametrize("columns", [("symbol", "price", "size"), ("symbol", "price")])
@pytest.mark.parametrize("converts", [True, False])
def test_columns_of_a_sender_are_read_as_they_are(columns: tuple[str, ...], converts: bool) -> None:
    """A column that the sender left out has the default of the type."""
    rows = [{"symbol": "a", "price": 0.5, "size": 2}, {"symbol": "b", "price": 1.5, "size": 3}]
    batch = pa.RecordBatch.from_pylist([{name: row[name] for name in columns} for row in rows])
    given = BatchRows(RecordColumns(batch, array("q", [1, 2]), "symbol"))
    codec = codec_for(Plain, "stream 'trades'")
    made = RecordForm("trades", Plain, None, codec.decode, column_fields(Plain) if converts else None)
    for row, key in enumerate([b"b", b"a"]):
        given.add(1 - row, key, 2 - row, False)
    found: mw.RecordBatch[Plain] = mw.RecordBatch(made, given)
    sizes = [3, 2] if "size" in columns else [1, 1]
    assert found.column("price").tolist() == [1.5, 0.5]
    assert found.column("size").tolist() == sizes
    assert found.column("symbol").tolist() == ["b", "a"]
    found.column("price")[0] = 7.0
    assert found.to_arrow().to_pydict() == {"symbol": ["b", "a"], "price": [1.5, 0.5], "size": sizes}


def test_a_cluster_knows_streams_by_their_full_names() -> None:
    topology = mw.Topology("trades")
    topology.source("trades", Trade)
    topology.add(Calling(lambda ctx, batch: None), name="calling", inputs={"trades": mw.key("symbol")})
    program = compile_computation(topology, "calling", full_names=True)
    assert program.batches is not None
    assert [*program.batches.forms] == ["trades/trades"]
    assert (program.batches.forms["trades/trades"].stream, program.record_hook) == ("trades", "process_batch")


class Optional(msgspec.Struct):
    symbol: str
    count: int | None = None
    fee: float | None = None


@pytest.mark.parametrize("converts", [True, False])
def test_the_type_of_a_column_does_not_depend_on_the_sender(converts: bool) -> None:
    """A column of a sender has no missing values, and the field may."""
    batch = pa.RecordBatch.from_pylist([{"symbol": "a", "count": 2, "fee": 0.5}])
    rows = BatchRows(RecordColumns(batch, array("q", [1]), "symbol"))
    rows.add(0, b"a", 1, False)
    decode = codec_for(Optional, "stream 'trades'").decode
    form = RecordForm("trades", Optional, None, decode, column_fields(Optional) if converts else None)
    found: mw.RecordBatch[Optional] = mw.RecordBatch(form, rows)
    assert found.column("count").dtype == np.object_
    assert found.column("fee").dtype == np.float64


def test_a_call_keeps_what_was_made_of_its_first_records() -> None:
    """What functions made of the values, and what filters and selections made of columns."""
    rows = BatchRows([b"1", b"2", b"3"])
    rows.values = ["a", "b", "c"]
    rows.table = RecordColumns(pa.record_batch({"symbol": ["a", "b", "c"]}), array("q", [1, 2, 3]))
    rows.keep(2)
    assert (rows.values, rows.table.batch.to_pydict()) == (["a", "b"], {"symbol": ["a", "b"]})
    assert rows.table.timestamps.tolist() == [1, 2]
