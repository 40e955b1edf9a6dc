"""The count in Flink's Table API, by SQL. No Python runs for a record."""

from __future__ import annotations

import json
import os
from typing import Any

from pyflink.table import EnvironmentSettings, TableEnvironment

__all__ = ["main"]

_HITS = """
CREATE TABLE hits (
  `key` STRING,
  `at` TIMESTAMP_LTZ(3) METADATA FROM 'timestamp',
  WATERMARK FOR `at` AS `at` - INTERVAL '{out_of_order}' SECOND
) WITH (
  'connector' = 'kafka', 'topic' = '{source}', 'properties.bootstrap.servers' = '{broker}',
  'properties.group.id' = 'flink-table', 'scan.startup.mode' = 'earliest-offset', 'format' = 'json'
)"""
_RESULTS = """
CREATE TABLE results (`key` STRING, `start` BIGINT, `count` BIGINT) WITH (
  'connector' = 'kafka', 'topic' = '{target}', 'properties.bootstrap.servers' = '{broker}',
  'key.format' = 'raw', 'key.fields' = 'key', 'value.format' = 'json',
  'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = '{target}',
  'properties.transaction.timeout.ms' = '600000'
)"""
_COUNT = """
INSERT INTO results
SELECT `key`, CAST(TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', window_start) AS BIGINT) * 1000, COUNT(*)
FROM TUMBLE(TABLE hits, DESCRIPTOR(`at`), INTERVAL '{window}' SECOND)
GROUP BY `key`, window_start, window_end"""


def main(job: dict[str, Any]) -> None:
    """Run the job until the process is stopped."""
    seconds = {"out_of_order": job["out_of_order_ms"] // 1_000, "window": job["window_ms"] // 1_000}
    table = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for name, value in {**job["settings"], "table.local-time-zone": "UTC"}.items():
        table.get_config().set(name, value)
    for statement in (_HITS, _RESULTS):
        table.execute_sql(statement.format(**{**job, **seconds}))
    table.execute_sql(_COUNT.format(**seconds)).wait()


if __name__ == "__main__":
    main(json.loads(os.environ["PEER_JOB"]))
