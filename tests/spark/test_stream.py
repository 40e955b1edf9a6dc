"""Streaming queries into a real server: exactly once, even if a process dies between Spark and MillWheel (5.2).

The tests run one query at a time, on one session. Each test has its own server. If every id has one effect, no record
is lost or repeated. If none is late, no watermark passed a batch in flight (G7).
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from millwheel.injectors.spark import SinkError, finish_stream
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from tests.patience import patience
from tests.spark.faults import arm, disarm
from tests.spark.jobs import DAY, options_for, start, write_trips
from tests.spark.server import TripServer

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("accidents"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

FAULTY = "millwheel-faulty"


def run(spark: SparkSession, server: TripServer, place: Path, form: str = FAULTY) -> None:
    """Run the query once, to the end of its files."""
    start(spark, place, options_for(server.address), form).awaitTermination()


def finish(spark: SparkSession, server: TripServer, place: Path) -> None:
    """Run the query for the last time, and end the stream."""
    options = options_for(server.address)
    query = start(spark, place, options, "millwheel")
    query.awaitTermination()
    finish_stream(query, options)


def check(server: TripServer, count: int) -> None:
    """Trips 0 to ``count`` took effect, each once and none late, at the consumer keyed by a field and at the other."""
    found = sorted((seen.id, seen.nth, seen.at, seen.late) for seen in server.effects())
    assert found == sorted((f"trip-{n}", 1, n * DAY // 24, False) for n in range(count))
    cities = sorted(seen.nth for seen in server.effects("cities") if seen.id.startswith("OSLO"))
    of_length = [len(f"trip-{n}") for n in range(0, count, 2)]
    assert cities == sorted(nth + 1 for length in set(of_length) for nth in range(of_length.count(length)))


def query_id(place: Path) -> str:
    """The query's id in its checkpoint."""
    return str(json.loads((place / "checkpoint" / "metadata").read_text())["id"])


@pytest.mark.guarantee("G1", "G7", section="5.2")
def test_rows_take_effect_once_and_the_watermark_follows_batches(
    spark: SparkSession, server: TripServer, tmp_path: Path
) -> None:
    write_trips(tmp_path / "in", range(600), "0")
    query = start(spark, tmp_path, options_for(server.address), "millwheel")
    with pytest.raises(SinkError, match="still runs"):
        finish_stream(query, options_for(server.address))
    query.awaitTermination()
    assert server.watermark() == 599 * DAY // 24 - DAY, "the newest row less the allowed delay"
    assert server.cursor(query_id(tmp_path)) == 0
    write_trips(tmp_path / "in", range(600, 700), "1")
    run(spark, server, tmp_path, "millwheel")
    assert server.watermark() == 699 * DAY // 24 - DAY
    assert server.cursor(query_id(tmp_path)) == 1
    finish(spark, server, tmp_path)
    finish_stream(query, options_for(server.address))
    assert server.watermark() == MAX_TIMESTAMP
    check(server, 700)


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_task_that_is_killed_is_tried_again(spark: SparkSession, server: TripServer, tmp_path: Path) -> None:
    write_trips(tmp_path / "in", range(400), "0")
    arm("die-midway")
    arm("die-acked")
    run(spark, server, tmp_path)
    finish(spark, server, tmp_path)
    check(server, 400)


@pytest.mark.guarantee("G1", section="6.1.1")
def test_copies_of_a_task_side_by_side_count_once(spark: SparkSession, server: TripServer, tmp_path: Path) -> None:
    for number in range(2):
        write_trips(tmp_path / "in", range(number * 300, number * 300 + 300), str(number))
    arm("twice.always")
    run(spark, server, tmp_path)
    finish(spark, server, tmp_path)
    check(server, 600)


@pytest.mark.guarantee("G1", "G7", section="6.1.1")
@pytest.mark.parametrize("moment", ["die-uncommitted", "die-before-cursor", "die-committed-0"])
def test_a_batch_whose_commit_dies_is_replayed_without_effect(
    spark: SparkSession, server: TripServer, tmp_path: Path, moment: str
) -> None:
    write_trips(tmp_path / "in", range(200), "0")
    write_trips(tmp_path / "in", range(200, 400), "1")
    arm(moment)
    with pytest.raises(StreamingQueryException):
        run(spark, server, tmp_path)
    assert not list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")), "Spark has committed nothing"
    assert server.cursor(query_id(tmp_path)) == (0 if moment == "die-committed-0" else -1)
    published = 199 * DAY // 24 - DAY
    assert server.watermark() == (MIN_TIMESTAMP if moment == "die-uncommitted" else published)
    arm("reorder.always")
    run(spark, server, tmp_path)
    finish(spark, server, tmp_path)
    check(server, 400)


@pytest.mark.guarantee("G1", section="6.1.1")
def test_an_old_batch_repeated_in_another_order_has_no_effect(
    spark: SparkSession, server: TripServer, tmp_path: Path
) -> None:
    for number in range(3):
        write_trips(tmp_path / "in", range(number * 200, number * 200 + 200), str(number))
    run(spark, server, tmp_path)
    assert server.cursor(query_id(tmp_path)) == 2
    for number in (1, 2):
        (tmp_path / "checkpoint" / "commits" / str(number)).unlink()
    (tmp_path / "checkpoint" / "offsets" / "2").unlink()
    for crumbs in (tmp_path / "checkpoint").rglob(".*.crc"):
        crumbs.unlink()
    # Without the cursor, receivers still know that batch 1 is complete, and have the ids of batch 2.
    arm("blind.always")
    arm("reorder.always")
    run(spark, server, tmp_path)
    assert (tmp_path / "checkpoint" / "commits" / "2").exists()
    assert server.cursor(query_id(tmp_path)) == 2, "a cursor never goes back"
    disarm()
    finish(spark, server, tmp_path)
    check(server, 600)


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_driver_killed_between_two_commits_resumes(spark: SparkSession, server: TripServer, tmp_path: Path) -> None:
    for number in range(3):
        write_trips(tmp_path / "in", range(number * 100, number * 100 + 100), str(number))
    command = [sys.executable, "-m", "tests.spark.jobs", server.address, str(tmp_path)]
    log = (tmp_path / "driver.log").open("wb")
    with log, subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True) as driver:
        arm("die-committed-1", str(driver.pid))
        assert driver.wait(timeout=patience(240)) == -signal.SIGKILL, (tmp_path / "driver.log").read_text()[-4_000:]
    assert not (tmp_path / "checkpoint" / "commits" / "1").exists()
    assert server.cursor(query_id(tmp_path)) == 1
    run(spark, server, tmp_path)
    finish(spark, server, tmp_path)
    check(server, 300)


@pytest.mark.guarantee("G14", section="5.2")
def test_rows_older_than_the_allowed_delay_are_late_once(
    spark: SparkSession, server: TripServer, tmp_path: Path
) -> None:
    write_trips(tmp_path / "in", range(100, 200), "0")
    # The newest record of the first batch is number 199. A day has 24 records, so number 175 is in time.
    write_trips(tmp_path / "in", range(170, 180), "1")
    run(spark, server, tmp_path)
    finish(spark, server, tmp_path)
    found = Counter((int(seen.id.removeprefix("trip-")), seen.late) for seen in server.effects())
    first = Counter((number, False) for number in range(100, 200))
    assert found == first + Counter((number, number < 175) for number in range(170, 180))


@pytest.mark.paper(section="5.2")
def test_two_queries_of_one_process_name_do_not_run_side_by_side(
    spark: SparkSession, server: TripServer, tmp_path: Path
) -> None:
    """Two queries would make contradictory promises under one name.

    So tasks whose process has a successor are refused.
    """
    from millwheel.client.injector import BatchOf
    from millwheel.injectors.batches import open_task
    from millwheel.injectors.spark.driver import announce, resolve
    from millwheel.injectors.spark.loop import run as do
    from millwheel.injectors.spark.options import parse_options

    options = resolve(parse_options(options_for(server.address)))
    older = announce(options)
    newer = announce(options)
    assert newer > older

    async def send(sequencer: int) -> None:
        injector = await open_task(options, sequencer)
        rows = [{"id": "a", "city": "rome", "at": 1}]
        await injector.send_many(rows, [1], ids=["a"], batch=BatchOf("q", 0), keys={"trips/per-city": ["k"]})
        try:
            await injector.flush()
        finally:
            await injector.close()

    do(send(newer))
    with pytest.raises(Exception, match="has a successor"):
        do(send(older))
