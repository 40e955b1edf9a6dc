"""A source and a sink around the tested ones, where a process dies at a step that the test names."""

from __future__ import annotations

from collections import Counter
from types import new_class
from typing import Any, TypeVar

from millwheel.connectors.sink import Sink, SinkBatch, SinkShard, SinkWriter
from millwheel.connectors.source import Read, Source, SplitReader, Splits
from millwheel.sdk.typeinfo import generic_arguments

__all__ = ["CallSteps", "ProcessDiedError", "position_type", "probed_sink", "probed_source"]

P = TypeVar("P")


class ProcessDiedError(Exception):
    """The process died at this step. Nothing that it did since its last commit remains."""


class CallSteps:
    """The steps of the connectors' calls.

    Args:
        step: Where the process dies, such as ``before a read``. Empty: it does not.
        at: How many times it comes there before.
    """

    def __init__(self, step: str = "", at: int = 0) -> None:
        self._step = step
        self._at = at
        self._seen: Counter[str] = Counter()
        self.began = False
        """Whether a source has splits by now: a harness reads at once, and a test looks at it before."""
        self.dead = False
        self.died = False

    def reach(self, step: str) -> None:
        """Come to a step.

        Raises:
            ProcessDiedError: It is the one at which the process dies, or the process is dead.
        """
        if (step, self._seen[step]) == (self._step, self._at):
            self.dead = self.died = True
        self._seen[step] += 1
        if self.dead:
            raise ProcessDiedError(step)


def position_type(source: Source[Any, Any]) -> Any:
    """The type of a source's positions, as its class states it."""
    return (generic_arguments(type(source), Source) or (Any, Any))[1]


def probed_source(source: Source[Any, Any], steps: CallSteps) -> Source[Any, Any]:
    """A source that does what ``source`` does, step by step."""
    # A class of its own for each type of positions, because a topology takes that from the class.
    kind = new_class("ProbedSource", (_ProbedSource[position_type(source)],))  # type: ignore[misc]
    probed: Source[Any, Any] = kind(source, steps)
    return probed


def probed_sink(sink: Sink[Any], steps: CallSteps) -> Sink[Any]:
    """A sink that does what ``sink`` does, step by step."""
    return _ProbedSink(sink, steps)


class _ProbedSource(Source[Any, P]):
    def __init__(self, source: Source[Any, P], steps: CallSteps) -> None:
        self._source = source
        self._steps = steps

    def identity(self) -> str:
        return self._source.identity()

    async def splits(self) -> Splits:
        if not self._steps.began:
            return Splits([])
        self._steps.reach("before a search")
        found = await self._source.splits()
        self._steps.reach("after a search")
        return found

    async def open_reader(self, split: str, position: P | None) -> SplitReader[Any, P]:
        self._steps.reach("before a reader opens")
        reader = await self._source.open_reader(split, position)
        return _ProbedReader(reader, self._steps)


class _ProbedReader(SplitReader[Any, P]):
    def __init__(self, reader: SplitReader[Any, P], steps: CallSteps) -> None:
        self._reader = reader
        self._steps = steps

    async def read(self) -> Read[Any, P]:
        self._steps.reach("before a read")
        self._reader.most_records = self.most_records
        read = await self._reader.read()
        if read.records:
            self._steps.reach("after a read")
        return read

    async def close(self) -> None:
        await self._reader.close()


class _ProbedSink(Sink[Any]):
    def __init__(self, sink: Sink[Any], steps: CallSteps) -> None:
        self._sink = sink
        self._steps = steps

    async def open_writer(self, place: SinkShard) -> SinkWriter[Any]:
        self._steps.reach("before a writer opens")
        writer = await self._sink.open_writer(place)
        return _ProbedWriter(writer, self._steps)


class _ProbedWriter(SinkWriter[Any]):
    def __init__(self, writer: SinkWriter[Any], steps: CallSteps) -> None:
        self._writer = writer
        self._steps = steps

    async def write(self, batch: SinkBatch[Any]) -> None:
        self._steps.reach("before a write")
        await self._writer.write(batch)
        self._steps.reach("after a write")

    async def close(self) -> None:
        await self._writer.close()
