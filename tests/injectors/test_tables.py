"""Tables that injectors send: by columns where that is possible, with the effect of single records (5.2, 6.1.1)."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from millwheel.client.injector import Injector, InjectorSettings
from millwheel.client.injector.messages import Limits
from millwheel.client.injector.outbound import OutboundQueues
from millwheel.client.injector.tables import table_parts
from millwheel.rpc.columns import RecordColumns
from millwheel.sdk.errors import KeyExtractionError, UsageError, ValueEncodeError
from millwheel.server.dev_server import DevServer, DevSettings, running
from millwheel.worker.process import delivery_service
from tests.injectors.conftest import Submit, submit_to
from tests.injectors.injected_shop import Order
from tests.injectors.test_with_server import ORDERS, TIMES, check_once, everything

COLUMNS = {"user": [one.customer for one in ORDERS], "number": [one.number for one in ORDERS], "at": TIMES}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of records of each delivery by columns."""
    found: list[int] = []
    to_wire = RecordColumns.to_wire

    def counted(self: RecordColumns) -> Any:
        found.append(len(self))
        return to_wire(self)

    monkeypatch.setattr(RecordColumns, "to_wire", counted)
    return found


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
    ],
    ids=["times", "pandas", "other widths", "dictionary", "record batch"],
)
async def test_each_form_of_a_table_goes_by_columns(
    server: DevServer, submit: Submit, sent: list[int], table: Any
) -> None:
    await submit("shop")
    await send(server, table)
    check_once(await everything(server.address, "echo"), ORDERS)
    assert sum(sent) == len(ORDERS)


@pytest.mark.parametrize(
    "more",
    [{"more": [None, *range(2_499)]}, {"more": [[1, 2]] * 2_500}, {"more": [timedelta(seconds=1)] * 2_500}],
    ids=["nulls", "lists", "another type"],
)
async def test_what_is_no_plain_column_goes_row_by_row(
    server: DevServer, submit: Submit, sent: list[int], more: dict[str, Any]
) -> None:
    await submit("shop")
    await send(server, pa.table({**COLUMNS, **more}), position=5)
    check_once(await everything(server.address, "echo"), ORDERS)
    assert not sent


async def test_a_key_that_code_computes_goes_row_by_row(server: DevServer, submit: Submit, sent: list[int]) -> None:
    await submit("codekeyed")
    await send(server, pa.table(COLUMNS))
    found = await everything(server.address, "totals")
    assert Counter({row["bucket"]: row["count"] for row in found}) == Counter(str(one.number % 3) for one in ORDERS)
    assert not sent


async def test_a_worker_without_pyarrow_gets_rows(
    server: DevServer, submit: Submit, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_service, "has_columns", lambda: False)
    await submit("shop")
    await send(server, pa.table(COLUMNS))
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
    assert sum(sent) == len(ORDERS)
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
    assert sum(sent) == len(ORDERS)


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


def test_what_is_no_table_is_refused() -> None:
    for data in ([Order("a", 1)], pa.table({"at": [1]}), pa.table({"number": [1], "time": [1]})):
        with pytest.raises(UsageError):
            list(table_parts(data, "at"))
    with pytest.raises(UsageError, match="one name"):
        list(table_parts(pa.table([[1], [2], [3]], names=["at", "number", "number"]), "at"))


@pytest.mark.parametrize("texts", [["x" * 10_000] * 500, [*["x"] * 3_000, *["x" * 400_000] * 20]], ids=["wide", "some"])
def test_a_wide_table_is_sent_in_small_parts(texts: list[str]) -> None:
    parts = list(table_parts(pd.DataFrame({"text": texts, "at": range(len(texts))}), "at"))
    assert [time for _, times in parts for time in times] == [*range(len(texts))]
    assert max(values.nbytes for values, _ in parts) <= 1 << 20


def test_many_columns_make_parts_of_few_rows() -> None:
    parts = list(
        table_parts(pa.table({f"column-{one:040}": [True] * 2_000 for one in range(200)} | {"at": range(2_000)}), "at")
    )
    assert max(len(times) for _, times in parts) < 1_000
