"""Every type of Spark that a record holds comes back as it was sent, by columns and by rows."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from millwheel.client.subscription import BlockingSubscription, From
from millwheel.injectors.spark.loop import run
from tests.spark import kinds
from tests.spark.kinds import Sold
from tests.spark.test_batch import save
from tests.submitting import submit_copy
from tests.system.server import Server

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

SOLD = [
    Sold("a", date(2026, 2, 28), Decimal("1.50")),
    Sold("b", date(1, 1, 1), Decimal("-99999999.99")),
    Sold("c", None, None),
    Sold(
        "d", date(9999, 12, 31), Decimal("0.00"), datetime(2026, 1, 1, 12, 30, 0, 5),
        timedelta(days=-3, microseconds=7), time(23, 59, 59, 999_999), {date(2026, 1, 1): Decimal("2.25")},
        {7: 1, -8: 2},
    ),
]  # fmt: skip
PLAIN = "id string, at timestamp, day date, price decimal(10,2)"
ALL = (
    f"{PLAIN}, local timestamp_ntz, took interval day to second, opens time(6), days map<date,decimal(5,2)>, "
    "counts map<int,bigint>"
)


@pytest.mark.paper(section="4.3")
def test_types_of_spark_come_back(spark: SparkSession, tmp_path: Path) -> None:
    server = Server(tmp_path / "db", tmp_path / "server.log", intervals=2)
    run(server.start())
    try:
        run(submit_copy(server.address, kinds.__file__, "kinds", tmp_path))
        at = datetime(2026, 1, 1)

        def write(query: str, columns: str, sold: list[Sold], **more: str) -> None:
            rows: list[tuple[Any, ...]] = [(one.id, at, *msgspec.structs.astuple(one)[1:]) for one in sold]
            frame = spark.createDataFrame([row[: 4 if columns == PLAIN else None] for row in rows], columns)
            save(frame, options | {"query": query, **more})

        options = {
            "address": server.address, "stream": "kinds/sold", "id_column": "id", "timestamp_column": "at",
            "any_timestamp": "true",
        }  # fmt: skip
        write("plain", PLAIN, SOLD[:3])
        write("all", ALL, SOLD[3:], end_of_input="true")
        reading: dict[str, Any] = {"start": From.OLDEST, "address": server.address, "record_type": Sold}
        with BlockingSubscription("kinds/echoed", until_end=True, **reading) as subscription:
            found = [value for batch in subscription for value in batch.values]
        assert sorted(found, key=lambda one: str(one.id)) == SOLD
    finally:
        run(server.kill())
