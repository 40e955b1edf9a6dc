"""A query in Flink's SQL, from the file of events to files, or to a log of changes. No Python runs for a record."""

from __future__ import annotations

import json
import os
from typing import Any

from pyflink.table import EnvironmentSettings, TableEnvironment

__all__ = ["main"]

_EVENTS = """
CREATE TABLE events (
  `type` STRING, `id` BIGINT, `name` STRING, `email` STRING, `credit_card` STRING, `city` STRING, `state` STRING,
  `item` STRING, `description` STRING, `initial_bid` BIGINT, `reserve` BIGINT, `category` BIGINT, `seller` BIGINT,
  `expires` BIGINT, `auction` BIGINT, `bidder` BIGINT, `price` BIGINT, `channel` STRING, `url` STRING,
  `at` BIGINT, `extra` STRING,
  `moment` AS CAST(TO_TIMESTAMP_LTZ(`at` / 1000, 3) AS TIMESTAMP(3)),
  WATERMARK FOR `moment` AS `moment` - INTERVAL '{out_of_order}' SECOND
) WITH ('connector' = 'filesystem', 'path' = '{source}', 'format' = 'json')"""
_VIEWS = {
    "person": "`id`, `name`, `email`, `credit_card`, `city`, `state`",
    "auction": "`id`, `item`, `description`, `initial_bid`, `reserve`, `category`, `seller`, `expires`",
    "bid": "`auction`, `bidder`, `price`, `channel`, `url`",
}
_VIEW = "CREATE VIEW {name} AS SELECT {columns}, `at`, `extra`, `moment` FROM events WHERE `type` = '{kind}'"
_FILES = "'connector' = 'filesystem', 'path' = '{target}', 'format' = 'json'"
_CHANGES = "'connector' = 'print'"


def main(job: dict[str, Any]) -> None:
    """Run the job to the end of the file."""
    table = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for name, value in {**job["settings"], "table.local-time-zone": "UTC"}.items():
        table.get_config().set(name, value)
    table.execute_sql(_EVENTS.format(source=job["source"], out_of_order=job["out_of_order_ms"] // 1_000))
    for name, columns in _VIEWS.items():
        table.execute_sql(_VIEW.format(name=name, columns=columns, kind=name.capitalize()))
    sink = _CHANGES if job["updated"] else _FILES.format(target=job["target"])
    table.execute_sql(f"CREATE TABLE results WITH ({sink}) AS {job['sql']}").wait()


if __name__ == "__main__":
    main(json.loads(os.environ["PEER_JOB"]))
