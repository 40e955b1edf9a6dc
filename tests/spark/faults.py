"""The sink with faults between Spark and MillWheel, each at a chosen moment.

A fault is a file in the directory that ``MILLWHEEL_TEST_FAULTS`` names. The process that removes the file has the
fault, once. A file whose name ends in ``.always`` stays. Executors and drivers inherit the variable.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from time import sleep

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from millwheel.client.control import ControlClient
from millwheel.injectors.spark import MillwheelDataSource
from millwheel.injectors.spark.writers import BatchWriter, StreamWriter

VARIABLE = "MILLWHEEL_TEST_FAULTS"


def _place(name: str) -> Path:
    return Path(os.environ[VARIABLE]) / name


def arm(name: str, text: str = "") -> None:
    """Arrange a fault. It writes ``<name>.done`` when it happens."""
    _place(f"{name}.done").unlink(missing_ok=True)
    _place(name).write_text(text)


def happened(name: str) -> bool:
    """Whether a fault has happened."""
    return _place(f"{name}.done").exists()


def disarm() -> list[str]:
    """Remove all faults. Returns the names of those that did not happen."""
    left = [path for path in Path(os.environ[VARIABLE]).iterdir() if path.suffix != ".done"]
    for path in left:
        path.unlink()
    return [path.name for path in left if path.suffix != ".always"]


def _claim(name: str) -> str | None:
    """Take a fault. Returns its text."""
    try:
        text = _place(name).read_text()
        _place(name).unlink()
    except FileNotFoundError:
        return None
    _place(f"{name}.done").touch()
    return text


def _die_if(name: str) -> None:
    """Given this fault, kill this process and the process group that the fault's text names."""
    if (text := _claim(name)) is not None:
        if text:
            os.killpg(int(text), signal.SIGKILL)
        os._exit(3)


class Faulty(MillwheelDataSource):
    """Format ``millwheel-faulty``."""

    @classmethod
    def name(cls) -> str:
        super().name()
        return "millwheel-faulty"

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        plain = super().writer(schema, overwrite)
        plain.__class__ = FaultyBatchWriter
        return plain

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        plain = super().streamWriter(schema, overwrite)
        plain.__class__ = FaultyStreamWriter
        return plain


class FaultyStreamWriter(StreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        if context is not None and context.attemptNumber():
            _place("again.done").touch()
        report = _written(super().write, iterator)
        _die_if("die-acked")
        return report

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _before_commit()
        super().commit(messages, batchId)
        _die_if(f"die-committed-{batchId}")


class FaultyBatchWriter(BatchWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _written(super().write, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _before_commit()
        super().commit(messages)
        _die_if(f"die-committed-{self.batch.batch}")


_real_cursor, _real_commit = ControlClient.batch_cursor, ControlClient.commit_batch


def _before_commit() -> None:
    async def commit_batch(self: ControlClient, query: str, batch: int) -> None:
        _die_if("die-before-cursor")
        await _real_commit(self, query, batch)

    _die_if("die-uncommitted")
    ControlClient.commit_batch = commit_batch  # type: ignore[method-assign]


def _dying(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Exit or hang before the third batch. The first batch is sent by then."""
    for number, batch in enumerate(batches):
        if number == 2 and (text := _claim("stall")) is not None:
            sleep(float(text))
        if number == 2:
            _die_if("die-midway")
        yield batch


def _reordered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, in another order and in other Arrow batches."""
    if not _place("reorder.always").exists():
        return batches
    table = pa.Table.from_batches(list(batches))
    return iter(table.take(list(range(table.num_rows))[::-1]).to_batches(max_chunksize=37))


def _written(
    write: Callable[[Iterator[pa.RecordBatch]], WriterCommitMessage], batches: Iterator[pa.RecordBatch]
) -> WriterCommitMessage:
    """Run a task. Blind: it assumes that no batch is written, so only the receivers' completed batch prevents repeats.

    Twice: a speculative copy of the task runs beside it. The result is that of the last to end.
    """

    async def nothing(self: ControlClient, query: str) -> int:
        return -1

    blind = _place("blind.always").exists()
    ControlClient.batch_cursor = nothing if blind else _real_cursor  # type: ignore[method-assign]
    batches = _reordered(_dying(batches))
    if not _place("twice.always").exists():
        return write(batches)
    rows = list(batches)
    with ThreadPoolExecutor(2) as copies:
        return [one.result() for one in as_completed([copies.submit(write, iter(rows)) for _ in range(2)])][-1]
