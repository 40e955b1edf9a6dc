"""Batch writes into a real server: each row has one effect, also if the load is repeated (5.2)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from millwheel.client.injector import BatchOf
from millwheel.injectors.spark import SinkError
from millwheel.injectors.spark.driver import resolve, settle
from millwheel.injectors.spark.interpreter import check_interpreter, ignore_pandas_warning
from millwheel.injectors.spark.options import parse_options
from millwheel.injectors.spark.writers import BatchWriter
from millwheel.model.time import MAX_TIMESTAMP
from tests.patience import patience
from tests.spark.faults import arm
from tests.spark.jobs import DAY, options_for
from tests.spark.server import TripServer
from tests.spark.test_launcher import commands_of_a_program
from tests.spark.test_stream import FAULTY, check

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("accidents"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


def trips(spark: SparkSession, start: int, end: int) -> DataFrame:
    """Trips as in the files of :mod:`tests.spark.jobs`."""
    return spark.range(start, end, numPartitions=2).select(
        f.concat(f.lit("trip-"), f.col("id").cast("string")).alias("id"),
        f.when(f.col("id") % 2 == 0, "oslo").otherwise("rome").alias("city"),
        (f.col("id") * (DAY // 24)).alias("at"),
        (f.col("id") / 2).alias("load"),
        f.timestamp_micros(f.col("id") * (DAY // 24)).alias("when"),
    )


def save(frame: DataFrame, options: dict[str, str], form: str = "millwheel", mode: str = "append") -> None:
    """Write a DataFrame."""
    frame.write.format(form).mode(mode).options(**options).save()


def failure(act: Callable[[], None]) -> str:
    """The text of Spark's error for a failure in the sink."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any error that Spark makes of it
        act()
    return str(caught.value)


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_load_that_is_tried_again_takes_effect_once(spark: SparkSession, server: TripServer) -> None:
    options = options_for(server.address, query="load", end_of_input="true")
    arm("die-midway")
    arm("die-before-cursor")
    assert failure(lambda: save(trips(spark, 0, 300), options, FAULTY))
    assert server.cursor("load") == -1
    arm("die-committed-0")
    assert failure(lambda: save(trips(spark, 0, 300).sort(f.desc("id")), options, FAULTY))
    assert server.cursor("load") == 0
    assert server.watermark() == MAX_TIMESTAMP, "the process has finished, and a further attempt finds it so"
    save(trips(spark, 0, 300), options)
    check(server, 300)


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_load_in_batches_moves_on_one_cursor(spark: SparkSession, server: TripServer) -> None:
    for batch, end in ((0, 100), (1, 200), (0, 100), (1, 200)):
        save(trips(spark, end - 100, end), options_for(server.address, query="load", batch=str(batch)))
    assert server.cursor("load") == 1
    assert server.watermark() == 199 * DAY // 24 - DAY
    save(trips(spark, 200, 200), options_for(server.address, query="load", batch="2", end_of_input="true"))
    check(server, 200)


def test_a_load_that_is_already_in_is_reported_so(server: TripServer, caplog: pytest.LogCaptureFixture) -> None:
    """A user who forgets to rename the next load must not believe that it was accepted."""
    options = resolve(parse_options(options_for(server.address, query="load")))
    assert BatchWriter(options).sequencer
    assert caplog.text == ""
    settle(options, [], BatchOf(options.scope("load"), 0))
    assert not BatchWriter(options).sequencer
    assert "batch 0 of 'load' into stream 'trips/trips' is in already: no row is sent" in caplog.text


def test_a_row_that_cannot_be_a_record_is_named(spark: SparkSession, server: TripServer) -> None:
    bad = trips(spark, 0, 200)
    no_time = bad.withColumn("when", f.when(f.col("id") != "trip-150", f.col("when")))
    said = failure(lambda: save(no_time, options_for(server.address, query="a")))
    named = "stream 'trips/trips': the row with id 'trip-150' (row 50 of partition 1)"
    assert f"{named}: column 'when': the time is null" in said
    no_key = bad.withColumn("city", f.when(f.col("id") != "trip-77", f.col("city")))
    said = failure(lambda: save(no_key, options_for(server.address, query="b")))
    assert "the row with id 'trip-77' (row 77 of partition 0)" in said
    assert "Expected `str`" in said
    assert "$.city" in said, "the record's type takes no null there, and that is its column"


def test_a_writes_mistakes_are_reported_before_any_row_goes(spark: SparkSession, server: TripServer) -> None:
    frame, options = trips(spark, 0, 10), options_for(server.address, query="q")
    assert "option 'streem' of format 'millwheel' is unknown (did you mean 'stream'?)" in failure(
        lambda: save(frame, {**options, "streem": "x"})
    )
    assert "option 'query' of format 'millwheel' is missing" in failure(
        lambda: save(frame, options_for(server.address))
    )
    assert "there is no column 'idd' (did you mean 'id'?)" in failure(
        lambda: save(frame, {**options, "id_column": "idd"})
    )
    assert "column 'months' is interval month, which a record cannot hold: " in failure(
        lambda: save(frame.withColumn("months", f.expr("INTERVAL '3' MONTH")), options)
    )
    assert "write with mode 'append'" in failure(lambda: save(frame, options, mode="overwrite"))
    assert "'tripz'" in failure(lambda: save(frame, {**options, "stream": "tripz"}))
    nowhere = {**options, "address": "127.0.0.1:1", "patience": "1 second"}
    assert "127.0.0.1:1" in failure(lambda: save(frame, nowhere))
    assert server.cursor("q") == -1


def test_workers_run_by_this_interpreter_or_name_the_setting(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    context = spark.sparkContext
    monkeypatch.setattr(context, "pythonExec", "/usr/bin/env")
    with pytest.raises(SinkError, match=r"PYSPARK_PYTHON='/usr/bin/env', not by .*before the session starts"):
        check_interpreter()
    monkeypatch.delenv("PYSPARK_PYTHON")
    check_interpreter()
    command = context.pythonExec
    show = [command, "-c", "import sys; print(sys.executable)"]
    shown = subprocess.run(show, capture_output=True, check=True, text=True, timeout=patience(30.0))
    assert shown.stdout.strip() == sys.executable
    check_interpreter()
    assert context.pythonExec == command, "Spark knows processes by their command"
    monkeypatch.setenv("PYSPARK_PYTHON", os.path.basename(sys.executable))  # noqa: PTH119 - a command, not a path
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    monkeypatch.setattr(context, "pythonExec", Path(sys.executable).name)
    check_interpreter()


def test_executors_of_a_cluster_do_not_get_a_local_command(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command is a file of the driver's machine."""
    context = spark.sparkContext
    command = commands_of_a_program()[0]
    monkeypatch.setenv("PYSPARK_PYTHON", command)
    monkeypatch.setattr(context, "pythonExec", command)
    check_interpreter()
    assert context.pythonExec == command
    monkeypatch.setattr(context, "master", "yarn")
    check_interpreter()
    assert context.pythonExec == sys.executable
    monkeypatch.setattr(context, "pythonExec", "/opt/python")
    check_interpreter()
    assert context.pythonExec == "/opt/python"


def test_only_the_warning_of_pandas_3_is_kept_quiet(recwarn: pytest.WarningsRecorder) -> None:
    import warnings

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        ignore_pandas_warning()
        warnings.warn("PySpark does not yet fully support pandas >= 3.0.0. Some", FutureWarning, stacklevel=1)
        warnings.warn("PySpark will drop something", FutureWarning, stacklevel=1)
    assert [str(one.message) for one in seen] == ["PySpark will drop something"]
