"""Tables that injectors send: by columns where that is possible, with the effect of single records (5.2, 6.1.1)."""

from __future__ import annotations

import asyncio
import re
from array import array
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from millwheel.client.injector import BatchOf, Injector, InjectorSettings
from millwheel.client.injector.messages import Limits
from millwheel.client.injector.outbound import OutboundQueues
from millwheel.client.injector.tables import plain_table, table_parts
from millwheel.rpc.columns import RecordColumns
from millwheel.sdk.errors import KeyExtractionError, UsageError, ValueEncodeError
from millwheel.server.dev_server import DevServer, DevSettings, running
from millwheel.worker.process import delivery_service
from tests.injectors.by_columns import sent_by_columns
from tests.injectors.conftest import Submit, submit_to
from tests.injectors.injected_shop import Order
from tests.injectors.test_with_server import ORDERS, TIMES, check_once, everything
from tests.patience import patience

COLUMNS = {"user": [one.customer for one in ORDERS], "number": [one.number for one in ORDERS], "at": TIMES}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return sent_by_columns(monkeypatch)


async def send(server: DevServer, *tables: Any, end: bool = True, limits: Limits | None = None, **given: Any) -> None:
    settings = InjectorSettings(limits=limits or Limits())
    async with Injector("orders", address=server.address, settings=settings) as injector:
        for table in tables:
            await injector.send_table(table, timestamp="at", **given)
        await injector.flush()
        if end:
            await injector.finish()


@pytest.mark.guarantee("G1", section="6.1.1")
async def test_a_table_that_is_sent_again_has_no_effect(server: DevServer, submit: Submit, sent: list[int]) -> None:
    await submit("shop")
    table = pa.table(COLUMNS)
    await send(server, table.slice(0, 1_300), end=False, position=0, partition="p")
    # Its batches have other borders, so each of these records is looked at.
    await send(server, table.slice(700), position=700, partition="p")
    check_once(await everything(server.address, "echo"), ORDERS)
    assert sum(sent) >= len(ORDERS), "they were sent by columns"


@pytest.mark.parametrize("scope", [None, BatchOf("load", 4)], ids=["source", "batch"])
@pytest.mark.guarantee("G1", section="6.1.1")
async def test_rows_and_columns_have_the_same_ids(
    server: DevServer, submit: Submit, sent: list[int], scope: BatchOf | None
) -> None:
    """A process that sends some rows one by one, and all of them as columns when it is tried again, or in turn."""
    await submit("shop")
    rows = [{"user": one.customer, "number": one.number} for one in ORDERS]
    async with Injector("orders", address=server.address) as injector:
        await injector.send_many(rows[:700], TIMES[:700], ids=range(700), batch=scope)
        some = slice(1_500, 1_900)
        await injector.send_many(rows[some], TIMES[some], ids=[b"%d" % one for one in range(1_500, 1_900)], batch=scope)
        table = pa.table(COLUMNS)
        await injector.send_table(table, timestamp="at", id_column="number", batch=scope)
        await injector.send_table(table.slice(400, 700), timestamp="at", id_column="number", batch=scope)
        await injector.send_many(rows, TIMES, ids=[str(one.number) for one in ORDERS], batch=scope)
        await injector.finish()
    check_once(await everything(server.address, "echo"), ORDERS)
    assert sum(sent) >= len(ORDERS), "they were sent by columns"


@pytest.mark.guarantee("G1", section="6.1.1")
async def test_ids_of_columns_go_with_single_rows(server: DevServer, submit: Submit, sent: list[int]) -> None:
    """Lists make rows of a table, and each has its id. Texts, bytes and integers of any width may be ids."""
    await submit("shop")
    ids = pa.array(range(2_500), pa.uint64())
    table = pa.table({**COLUMNS, "order": ids, "more": [[1]] * 2_500})
    for some in (table, table.set_column(3, "order", ids.cast(pa.large_string())).drop_columns(["more"])):
        await send(server, some.slice(0, 2_000), end=False, id_column="order")
    assert sum(sent) >= 2_000, "the second table was sent by columns"
    await send(server, table.set_column(3, "order", ids.cast(pa.string()).cast(pa.binary())), id_column="order")
    check_once(await everything(server.address, "echo"), ORDERS)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"id_column": "order"}, "no column 'order' for ids"),
        ({"id_column": "at"}, "no column 'at' for ids"),
        ({"id_column": "half"}, "'half' is of type double"),
        ({"id_column": "some"}, "'some' has 1 null, the first in row 0"),
        ({"id_column": "empty"}, "empty"),
        ({"id_column": "number", "position": 0}, "not both"),
        ({"batch": BatchOf("load", 1)}, "ids of the records' own"),
    ],
)
async def test_a_table_with_wrong_ids_is_refused(
    server: DevServer, submit: Submit, given: dict[str, Any], why: str
) -> None:
    await submit("shop")
    more = {"half": [0.5] * 2_500, "some": [None, *["x"] * 2_499], "empty": ["x"] * 2_499 + [""]}
    async with Injector("orders", address=server.address) as injector:
        with pytest.raises(UsageError, match=why):
            await injector.send_table(pa.table({**COLUMNS, **more}), timestamp="at", **given)
        assert injector.accepted == 0


async def test_a_field_that_may_be_none_takes_a_column(server: DevServer, submit: Submit, sent: list[int]) -> None:
    await submit("notes")
    await send(server, pa.table({**COLUMNS, "note": ["fragile"] * 2_500}), end=False)
    assert sum(sent) >= len(ORDERS)
    with pytest.raises(ValueEncodeError, match=r"\$\.note"):
        await send(server, pa.table({**COLUMNS, "note": [1] * 2_500}))
    await send(server)
    check_once(await everything(server.address, "echo"), ORDERS)


@pytest.mark.parametrize(
    "table",
    [
        pa.table(
            {**COLUMNS, "at": [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=one) for one in range(2_500)]}
        ),
        pa.table(COLUMNS).to_pandas(),
        pa.table(COLUMNS).cast(pa.schema([("user", pa.large_string()), ("number", pa.int16()), ("at", pa.int64())])),
        pa.table({**COLUMNS, "user": pa.array(COLUMNS["user"]).dictionary_encode()}),
        pa.table({**COLUMNS, "more": [b"\xff"] * 2_500}).combine_chunks().to_batches()[0],
        pa.table({**COLUMNS, "more": [None, *range(2_499)]}),
    ],
    ids=["times", "pandas", "other widths", "dictionary", "record batch", "nulls of another column"],
)
async def test_each_form_of_a_table_goes_by_columns(
    server: DevServer, submit: Submit, sent: list[int], table: Any
) -> None:
    await submit("shop")
    await send(server, table)
    check_once(await everything(server.address, "echo"), ORDERS)
    assert sum(sent) >= len(ORDERS)


@pytest.mark.parametrize(
    "more",
    [
        {"more": [[1, 2]] * 2_500},
        {"more": [timedelta(seconds=1)] * 2_500},
        {"more": pa.array(range(0, 2_500_000, 1_000), pa.timestamp("ns"))},
    ],
    ids=["lists", "another type", "times of pandas"],
)
async def test_what_is_no_plain_column_goes_row_by_row(
    server: DevServer, submit: Submit, sent: list[int], more: dict[str, Any]
) -> None:
    await submit("shop")
    await send(server, pa.table({**COLUMNS, **more}), position=5)
    check_once(await everything(server.address, "echo"), ORDERS)
    assert not sent


@pytest.mark.guarantee("G1", section="5.2")
async def test_nulls_of_a_field_that_may_be_none_go_by_columns(
    server: DevServer, submit: Submit, sent: list[int]
) -> None:
    await submit("notes")
    notes = [None if one % 3 else f"note {one}" for one in range(2_500)]
    await send(server, pa.table({**COLUMNS, "note": notes}).slice(1), end=False)
    assert sum(sent) >= 2_499
    wrong = send(server, pa.table({**COLUMNS, "number": [None, *range(2_499)]}), end=False)
    with pytest.raises(ValueEncodeError, match=r"row 0.*number"):
        await asyncio.wait_for(wrong, patience(10))  # if the row was sent, its record would fail for ever
    await send(server, pa.table({**COLUMNS, "note": notes}).slice(0, 1))
    check_once(await everything(server.address, "echo"), ORDERS)


@pytest.mark.guarantee("G1", section="4.2")
async def test_a_key_that_is_an_integer_goes_by_columns(server: DevServer, submit: Submit, sent: list[int]) -> None:
    await submit("numbered")
    await send(server, pa.table(COLUMNS))
    found = [(row["user"], row["number"], row["nth"]) for row in await everything(server.address, "echo")]
    assert Counter(found) == Counter((str(one.number), one.number, 1) for one in ORDERS)
    assert sum(sent) >= len(ORDERS)


@pytest.mark.guarantee("G1", section="4.2")
async def test_a_null_as_a_key_is_refused_with_its_row(server: DevServer, submit: Submit) -> None:
    await submit("guests")
    users: list[Any] = [one.customer for one in ORDERS]
    users[5] = None
    with pytest.raises(KeyExtractionError, match="row 5"):
        await send(server, pa.table({**COLUMNS, "user": users}))


async def test_a_key_that_code_computes_goes_row_by_row(server: DevServer, submit: Submit, sent: list[int]) -> None:
    await submit("codekeyed")
    await send(server, pa.table(COLUMNS))
    found = await everything(server.address, "totals")
    assert Counter({row["bucket"]: row["count"] for row in found}) == Counter(str(one.number % 3) for one in ORDERS)
    assert not sent


async def test_a_worker_without_pyarrow_gets_rows(
    server: DevServer,
    submit: Submit,
    sent: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(delivery_service, "has_columns", lambda: False)
    await submit("shop")
    await send(server, pa.table(COLUMNS))
    assert [one[0] for one in logged(caplog) if "without the extra arrow" in one[1]] == ["WARNING"]
    check_once(await everything(server.address, "echo"), ORDERS)
    assert sent, "the worker has answered that it reads none"


async def test_a_cluster_of_an_older_format_gets_rows(tmp_path: Path, sent: list[int]) -> None:
    async with running(DevSettings(db=tmp_path / "db", port=0, intervals=3, cluster_format=3)) as server:
        await submit_to(server.address, "shop", tmp_path)
        await send(server, pa.table(COLUMNS))
        check_once(await everything(server.address, "echo"), ORDERS)
    assert not sent


@pytest.mark.guarantee("G13", section="5.2")
async def test_a_small_window_is_not_exceeded(
    server: DevServer, submit: Submit, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    unacked: list[int] = []
    put = OutboundQueues.distribute

    def watched(self: OutboundQueues, *given: Any, **named: Any) -> Any:
        found = put(self, *given, **named)
        unacked.append(self.records)
        return found

    monkeypatch.setattr(OutboundQueues, "distribute", watched)
    await submit("shop")
    await send(server, pa.table(COLUMNS), pa.table(COLUMNS).slice(0, 0), limits=Limits(window_records=300))
    check_once(await everything(server.address, "echo"), ORDERS)
    assert sum(sent) >= len(ORDERS)
    assert max(unacked) <= 300


@pytest.mark.guarantee("G1", section="6.1.1")
async def test_windows_by_columns_take_columns(tmp_path: Path, sent: list[int]) -> None:
    """Keys and times are read by columns, and numbers from the values that are made of them."""
    times = [1_000_000 + 1_000 * one for one in range(2_500)]
    wanted: Counter[tuple[str, int]] = Counter()
    for order, time in zip(ORDERS, times, strict=True):
        wanted[order.customer, time // 1_000_000 * 1_000_000] += order.number
    async with running(DevSettings(db=tmp_path / "db", port=0, intervals=3, columns=True)) as server:
        await submit_to(server.address, "sums", tmp_path)
        await send(server, pa.table({**COLUMNS, "at": times}))
        found = await everything(server.address, "sold")
    assert {(row["key"], row["start"]): row["value"] for row in found} == wanted
    assert sum(sent) >= len(ORDERS)


@pytest.mark.parametrize(
    ("column", "values", "error"),
    [
        ("number", ["one"] * 2_500, ValueEncodeError),
        ("user", [*range(2_500)], ValueEncodeError),
        ("user", [None] * 2_500, ValueEncodeError),
        ("at", [None] * 2_500, UsageError),
        ("at", ["now"] * 2_500, UsageError),
    ],
)
async def test_a_table_of_other_types_is_refused(
    server: DevServer, submit: Submit, column: str, values: list[Any], error: type[Exception]
) -> None:
    await submit("shop")
    with pytest.raises((error, KeyExtractionError)):
        await send(server, pa.table({**COLUMNS, column: values}))


async def test_what_arrow_does_not_allow_is_refused(server: DevServer, submit: Submit) -> None:
    """A receiver would refuse the delivery, and the injector would end."""
    await submit("shop")
    offsets = pa.py_buffer(array("i", range(2_501)))
    bad = pa.Array.from_buffers(pa.string(), 2_500, [None, offsets, pa.py_buffer(b"\xff" * 2_500)])
    async with Injector("orders", address=server.address) as injector:
        with pytest.raises(ValueEncodeError, match="'more'"):
            await injector.send_table(pa.table({**COLUMNS, "more": bad}), timestamp="at")
        await injector.send_table(pa.table(COLUMNS), timestamp="at")
        await injector.finish()
    check_once(await everything(server.address, "echo"), ORDERS)


async def test_a_table_of_many_columns_goes_row_by_row(server: DevServer, submit: Submit, sent: list[int]) -> None:
    """A receiver refuses a schema of this size."""
    await submit("shop")
    few = pa.table({**COLUMNS, **{f"column-{one}": ["x"] * 2_500 for one in range(1_500)}}).slice(0, 20)
    await send(server, few)
    check_once(await everything(server.address, "echo"), ORDERS[:20])
    assert not sent


async def test_no_row_is_sent_if_a_time_or_position_is_wrong(server: DevServer, submit: Submit) -> None:
    await submit("shop")
    times = [*[1_767_225_600_000_000] * 19_999, 1_767_225_600]
    table = pa.table({"user": ["u"] * 20_000, "number": range(20_000), "at": times})
    strict = InjectorSettings(any_timestamp=False)
    given: list[tuple[Any, Any, str]] = [
        (table, None, "timestamp"), (table[:10_000], (1 << 64) - 9_999, "position"), (table[:1], "1", "position")
    ]  # fmt: skip
    async with Injector("orders", address=server.address, settings=strict) as injector:
        for some, position, why in given:
            with pytest.raises(UsageError, match=why):
                await injector.send_table(some, timestamp="at", position=position)
        assert injector.accepted == 0


async def test_a_stream_of_another_format_takes_no_table(server: DevServer, submit: Submit) -> None:
    """A log would keep maps in MessagePack as its bytes, without an error."""
    await submit("opaque")
    async with Injector("orders", address=server.address) as injector:
        with pytest.raises(UsageError, match="format RAW"):
            await injector.send_table(pa.table(COLUMNS), timestamp="at")
        assert injector.accepted == 0


async def test_a_column_is_no_path_to_a_key(server: DevServer, submit: Submit) -> None:
    """The key "user.id" is the field of a field. A column may have this name."""
    await submit("dotted")
    with pytest.raises(KeyExtractionError):
        await send(server, pa.table({**COLUMNS, "user.id": COLUMNS["user"]}))


def test_what_is_no_table_is_refused() -> None:
    for data in ([Order("a", 1)], pa.table({"at": [1]}), pa.table({"number": [1], "time": [1]})):
        with pytest.raises(UsageError):
            plain_table(data, "at")
    with pytest.raises(ValueEncodeError, match="what this Series has"):
        plain_table(pd.Series([1]), "at")
    with pytest.raises(UsageError, match="one name"):
        plain_table(pa.table([[1], [2], [3]], names=["at", "number", "number"]), "at")


@pytest.mark.parametrize("texts", [["x" * 10_000] * 500, [*["x"] * 3_000, *["x" * 400_000] * 20]], ids=["wide", "some"])
def test_a_wide_table_is_sent_in_small_parts(texts: list[str]) -> None:
    parts = list(table_parts(plain_table(pd.DataFrame({"text": texts, "at": range(len(texts))}), "at")))
    assert [time for _, times in parts for time in times] == [*range(len(texts))]
    assert max(values.nbytes for values, _ in parts) <= 1 << 20


@pytest.mark.guarantee("G13", section="5.2")
def test_a_part_has_nothing_of_the_others() -> None:
    """The buffers of a slice are those of the whole table."""
    table = pa.table({"text": [f"{one}" for one in range(100_000)], "odd": [True] * 100_000, "at": range(100_000)})
    for values, times in table_parts(plain_table(table, "at")):
        size = RecordColumns(values, times, "text").to_wire().ByteSize()
        assert max(size, values.get_total_buffer_size()) < 2 * values.nbytes + 8 * len(times) + 4_096


@pytest.mark.parametrize("kind", [pd.DataFrame, type("Frame", (pd.DataFrame,), {})], ids=["pandas", "kin"])
def test_the_index_of_a_data_frame_is_no_column(kind: Any) -> None:
    frame = pd.DataFrame({"number": range(9), "at": range(9)})
    for data in map(
        kind, (frame[frame.number != 2], frame.sample(frac=1, random_state=1), frame.set_index("number", drop=False))
    ):
        assert plain_table(data, "at").column_names == ["number", "at"]


def test_columns_get_the_plain_type_of_their_values() -> None:
    columns = {
        "text": pa.array(["a"], pa.string_view()),
        "raw": pa.array([b"a"], pa.binary_view()),
        "when": pa.array([1_000], pa.timestamp("ns", "UTC")),
        "long": pa.array([1_000], pa.duration("ns")),
        "kind": pa.DictionaryArray.from_arrays(pa.array([0], pa.uint32()), pa.array(["a"], pa.string_view())),
        "at": pa.array([1], pa.timestamp("s")),
    }
    table = plain_table(pa.table(columns), "at")
    types = [pa.string(), pa.binary(), pa.timestamp("us", "UTC"), pa.duration("us"), pa.string(), pa.int64()]
    assert (table.schema.types, table.column("at").to_pylist()) == (types, [1_000_000])


def test_what_pyarrow_cannot_cast_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its versions differ in the casts of views. Here lists are taken for views, and there is no such cast."""
    monkeypatch.setattr(pa.types, "is_string_view", pa.types.is_list)
    table = plain_table(pa.table({"more": [[1]], "at": [1]}), "at")
    assert table.schema.types == [pa.list_(pa.int64()), pa.int64()]


def test_chunks_that_arrow_cannot_join_are_left_apart() -> None:
    one, two = (pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([[number]])) for number in (1, 2))
    table = plain_table(pa.table({"more": pa.chunked_array([one, two]), "text": ["a", "b"], "at": [3, 4]}), "at")
    found = [(values.to_pylist(), times.tolist()) for values, times in table_parts(table)]
    assert found == [([{"more": [1], "text": "a"}], [3]), ([{"more": [2], "text": "b"}], [4])]


def test_columns_that_arrow_cannot_copy_are_left_alone() -> None:
    union = pa.UnionArray.from_sparse(pa.array([0, 1, 0], pa.int8()), [pa.array([1, 2, 3]), pa.array(["a", "b", "c"])])
    parts = table_parts(plain_table(pa.table({"more": union, "at": [1, 2, 3]}), "at"), 2)
    assert [row["more"] for values, _ in parts for row in values.to_pylist()] == [1, "b", 3]


@pytest.mark.parametrize(
    ("name", "values"),
    [("at", pa.array([1 << 60], pa.timestamp("s"))), ("when", pa.array([1_001], pa.timestamp("ns")))],
)
def test_a_time_that_would_change_is_refused(name: str, values: Any) -> None:
    with pytest.raises(UsageError, match=name):
        plain_table(pa.table({"when": [1], "at": [1], name: values}), "at")


@pytest.mark.parametrize("name", ["x" * 50, "\N{CAT}" * 10], ids=["letters", "cats"])
def test_many_columns_make_parts_of_few_rows(name: str) -> None:
    table = pa.table({f"{name}-{one}": [True] * 2_000 for one in range(200)} | {"at": range(2_000)})
    parts = list(table_parts(plain_table(table, "at")))
    assert max(len(times) for _, times in parts) < 1_000


SOLD = {"symbol": ["a"] * 1_500, "price": [1.5] * 1_500, "fee": [1] * 1_500, "at": TIMES[:1_500]}


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """The levels and texts about tables in the log."""
    return [(one.levelname, one.getMessage()) for one in caplog.records if "table" in one.getMessage()]


@pytest.mark.parametrize(
    ("more", "level", "why"),
    [
        ({"note": [["x"]] * 1_500}, "WARNING", r"column 'note' is of type list.*columns: leave the column out"),
        ({"fee": pa.nulls(1_500)}, "INFO", r"column 'fee' is of type null\. It has the same effect"),
        ({"price": pa.array([1] * 1_500)}, "WARNING", r"column 'price' is of type int64.*cast it to double"),
    ],
    ids=["undeclared", "nulls", "width"],
)
async def test_a_table_by_rows_says_why_once(
    server: DevServer, submit: Submit, caplog: pytest.LogCaptureFixture, more: dict[str, Any], level: str, why: str
) -> None:
    caplog.set_level("INFO", "millwheel.client")
    await submit("sales")
    table = pa.table({**SOLD, **more})
    limits = InjectorSettings(limits=Limits(window_records=400))  # so there are several parts
    async with Injector("sold", address=server.address, settings=limits) as injector:
        await injector.send_table(table, timestamp="at")
        await injector.send_table(table, timestamp="at")
        assert (injector.by_rows, injector.by_columns) == (3_000, 0)
    found = [one for one in logged(caplog) if "goes by rows" in one[1]]
    assert [one[0] for one in found] == [level]
    assert re.search(why, found[0][1]), found


async def test_undeclared_columns_are_said_once(
    server: DevServer, submit: Submit, caplog: pytest.LogCaptureFixture
) -> None:
    await submit("shop")
    async with Injector("orders", address=server.address) as injector:
        for _ in range(2):
            await injector.send_table(pa.table({**COLUMNS, "more": COLUMNS["user"]}), timestamp="at")
        assert (injector.by_rows, injector.by_columns) == (0, 5_000)
    ((level, text),) = logged(caplog)
    assert (level, "no fields of Order, which ignores them: 'more'" in text) == ("WARNING", True)


def test_a_text_is_no_set_of_columns() -> None:
    with pytest.raises(UsageError, match=re.escape("write frozenset({'note'})")):
        InjectorSettings(extra_columns="note")  # type: ignore[arg-type]


async def test_columns_that_a_call_names_need_no_field(
    server: DevServer, submit: Submit, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: the Spark sink, whose options name the columns of ids and times, warned of both."""
    await submit("shop")
    more = {"row": [str(number) for number in range(2_500)], "when": TIMES}
    settings = InjectorSettings(extra_columns=frozenset({"when"}))
    async with Injector("orders", address=server.address, settings=settings) as injector:
        await injector.send_table(pa.table({**COLUMNS, **more}), timestamp="at", id_column="row")
        assert (injector.by_rows, injector.by_columns) == (0, 2_500)
        assert logged(caplog) == []
        await injector.send_table(pa.table({**COLUMNS, **more, "wen": TIMES}), timestamp="at", id_column="row")
        await injector.send_table(pa.table({**COLUMNS, **more}), timestamp="at", id_column="row")
        await injector.send_table(pa.table({**COLUMNS, **more}), timestamp="at")
    assert [text.rpartition(": ")[2] for _, text in logged(caplog)] == ["'wen'", "'row'"]


@pytest.mark.parametrize(
    ("column", "values", "why"),
    [
        ("price", pa.array([1.5] * 1_203 + [None] * 297), "fillna"),
        ("price", pa.array([Decimal("1.5")] * 1_203 + [Decimal("2.5")] * 297), "astype"),
        ("symbol", pa.array(["a"] * 1_203 + [None] * 297), "is null in this row"),
        ("more", pa.array([0] * 1_203 + [1 << 62] * 297, pa.timestamp("s")), "no value of Python"),
    ],
    ids=["null", "decimal", "key", "year"],
)
async def test_an_error_names_the_row_and_what_helps(
    server: DevServer, submit: Submit, column: str, values: Any, why: str
) -> None:
    await submit("sales")
    row = 0 if why == "astype" else 1_203
    async with Injector("sold", address=server.address) as injector:
        table = pa.table({**SOLD, column: values})
        with pytest.raises((ValueEncodeError, KeyExtractionError)) as raised:
            await injector.send_table(table, timestamp="at", position=7, partition="p")
        assert f"row {row} of the table (counted from 0, position {row + 7} of partition 'p'): " in str(raised.value)
        assert why in str(raised.value)
        before = f"The {row:,} rows before it are sent" if row else "No row is sent"
        assert str(raised.value).endswith(before)
        assert injector.accepted == injector.by_rows == row
        await injector.flush()
        assert injector.acknowledged("p") == (row + 7 if row else None)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ([{"user": "a", "at": 1}], "no list; `pyarrow.Table.from_pylist` makes one of a list of dicts"),
        (pa.table({"user": ["a"]}), r"no column 'at' for timestamps: its columns are \['user'\]"),
        (pa.table({"at": [1]}), "no column besides 'at'"),
        (pa.table({"user": ["a"], "at": [1.0]}), "column 'at' is of type double: it must have timestamps"),
        (pa.table({"user": ["a"] * 3, "at": [1, None, None]}), "'at' has 2 nulls, the first in row 1 counted from 0"),
    ],
)
def test_an_unfit_table_says_what_it_lacks(data: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        plain_table(data, "at")


def test_a_frame_that_arrow_cannot_have_says_why() -> None:
    lone = pd.Series(["a", "id-\ud800"], dtype=object)
    with pytest.raises(ValueEncodeError, match=r"this DataFrame has: .*surrogates not allowed; no row is sent"):
        plain_table(pd.DataFrame({"id": lone, "at": [1, 2]}), "at", "id")


async def test_positions_that_fall_say_what_to_do(server: DevServer, submit: Submit) -> None:
    await submit("shop")
    async with Injector("orders", address=server.address) as injector:
        await injector.send_table(pa.table(COLUMNS), timestamp="at", position=0, partition="late")
        with pytest.raises(UsageError, match=r"in partition 'late' must rise .* 0 came after 2499.*a new injector"):
            await injector.send_table(pa.table(COLUMNS), timestamp="at", position=0, partition="late")
