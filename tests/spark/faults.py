"""The sink with accidents: what may go wrong between Spark and MillWheel, caused at the moment that matters.

An accident is a file in the directory that ``MILLWHEEL_TEST_FAULTS`` names: whoever removes it has it, once. A file
whose name ends in ``.always`` stays. Executors and drivers inherit the variable.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Thread
from time import sleep
from typing import NoReturn

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from millwheel.client.control import ControlClient
from millwheel.injectors.spark import MillwheelDataSource
from millwheel.injectors.spark.source import BatchWriter, StreamWriter

__all__ = ["VARIABLE", "Faulty", "arm", "disarm", "happened"]

VARIABLE = "MILLWHEEL_TEST_FAULTS"


def _place(name: str) -> Path:
    return Path(os.environ[VARIABLE]) / name


def arm(name: str, text: str = "") -> None:
    """Have an accident happen, and leave a trace in ``<name>.done`` when it does."""
    _place(f"{name}.done").unlink(missing_ok=True)
    _place(name).write_text(text)


def happened(name: str) -> bool:
    """Whether an accident left its trace."""
    return _place(f"{name}.done").exists()


def disarm() -> list[str]:
    """End all accidents; the names of those that did not happen."""
    left = [path for path in Path(os.environ[VARIABLE]).iterdir() if path.suffix != ".done"]
    for path in left:
        path.unlink()
    return [path.name for path in left if path.suffix != ".always"]


def _claim(name: str) -> str | None:
    """Take an accident; its text."""
    try:
        text = _place(name).read_text()
        _place(name).unlink()
    except FileNotFoundError:
        return None
    _place(f"{name}.done").touch()
    return text


def _die(text: str = "") -> NoReturn:
    """End this process at once, and the process group that ``text`` names: the driver's."""
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
        _blind_to_cursors()
        context = TaskContext.get()
        if context is not None and context.attemptNumber():
            _place("again.done").touch()
        report = _twice(super().write, _reordered(_dying(iterator)))
        if _claim("die-acked") is not None:
            _die()
        return report

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _before_commit()
        super().commit(messages, batchId)
        _after_commit(batchId)


class FaultyBatchWriter(BatchWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        _blind_to_cursors()
        return _twice(super().write, _reordered(_dying(iterator)))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _before_commit()
        super().commit(messages)
        _after_commit(self.batch.batch)


def _before_commit() -> None:
    if _claim("die-uncommitted") is not None:
        _die()
    if _claim("die-before-cursor") is not None:

        async def commit_batch(self: ControlClient, query: str, batch: int) -> None:
            _die()

        ControlClient.commit_batch = commit_batch  # type: ignore[method-assign]


def _after_commit(batch: int) -> None:
    if (text := _claim(f"die-committed-{batch}")) is not None:
        _die(text)


_real_cursor = ControlClient.batch_cursor


def _blind_to_cursors() -> None:
    """Have this process's tasks believe that no batch is in: the receivers' floor alone is left."""

    async def nothing(self: ControlClient, query: str) -> int:
        return -1

    blind = _place("blind.always").exists()
    ControlClient.batch_cursor = nothing if blind else _real_cursor  # type: ignore[method-assign]


def _dying(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Die, or do nothing more, before the third batch: the first is on its way, or in."""
    for number, batch in enumerate(batches):
        if number == 2 and (text := _claim("stall")) is not None:
            sleep(float(text))
        if number == 2 and _claim("die-midway") is not None:
            _die()
        yield batch


def _reordered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, in another order and in other Arrow batches."""
    if not _place("reorder.always").exists():
        return batches
    table = pa.Table.from_batches(list(batches))
    return iter(table.take(list(range(table.num_rows))[::-1]).to_batches(max_chunksize=37))


def _twice(write: object, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
    """With "twice": a copy of the task beside it, as speculation starts them; the last one to end counts."""
    assert callable(write)
    if not _place("twice.always").exists():
        return write(batches)  # type: ignore[no-any-return]
    rows = list(batches)
    reports: list[WriterCommitMessage] = []
    copies = [Thread(target=lambda: reports.append(write(iter(rows)))) for _ in range(2)]
    for copy in copies:
        copy.start()
    for copy in copies:
        copy.join()
    assert len(reports) == 2
    return reports[-1]
