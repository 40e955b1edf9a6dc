"""The contract of sources: a topology reads one, while processes die, splits move and the other system is away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from millwheel.connectors.reading import SplitState
from millwheel.connectors.source import BadRecord
from millwheel.model.time import MAX_TIMESTAMP, seconds
from millwheel.sdk.topology import TopologyGraph
from millwheel.streams.topology import Topology
from millwheel.testing.connectors.given import PER_SPLIT
from millwheel.testing.connectors.probes import CallSteps, ProcessDiedError, probed_source
from millwheel.testing.connectors.readers import ReaderRules
from millwheel.testing.connectors.rules import POLL_SECONDS, deadline, not_offered, require, start_of_clock
from millwheel.testing.harness import TopologyHarness

__all__ = ["SourceContract"]

T = TypeVar("T")
P = TypeVar("P")

_STREAM: Final = "records"
_BAD: Final = "unreadable"
_DEATHS: Final = 6
"""At how many of a step's first times a process dies, each in a run of its own."""
_BACK_OFF: Final = seconds(60)
"""The longest time until a failing hook is tried again, or a split that has nothing is read."""
_A_WHILE: Final = seconds(_DEATHS)
"""How long a test looks whether a record comes twice: for a search a second, and some reads of each split."""


class SourceContract(ReaderRules[T, P]):
    """What must hold of a source, as tests. A subclass makes the source and writes the records that it reads.

    It has many methods: each that begins with ``test_`` is a rule. For example, a source that reads lists in memory::

        class TestLists(SourceContract[int, int]):
            def setup_method(self) -> None:
                self.lists: dict[str, list[int]] = {}

            def make_source(self) -> Source[int, int]:
                return Lists(self.lists)

            def write(self, split: int, numbers: Sequence[int]) -> None:
                self.lists.setdefault(f"list {split}", []).extend(numbers)

    pytest runs them, and so does unittest if the class inherits from ``unittest.TestCase``, too. What the other system
    needs is made by a fixture with ``autouse=True``, or by ``setUp``.
    """

    def test_each_record_is_read_once(self) -> None:
        """Each record comes once, and those of a split in their order (G1)."""
        written = self._write_some()
        with self._running(CallSteps()) as reads:
            reads.until_read(written)

    def test_records_that_come_later_are_read(self) -> None:
        """A split has had nothing for a while, and then gets records."""
        if not self.splits_grow:
            raise not_offered("splits_grow")
        written = self._write_some()
        with self._running(CallSteps()) as reads:
            reads.until_read(written)
            for split in written:
                more = [split * PER_SPLIT + 100, split * PER_SPLIT + 101]
                self.write(split, more)
                written[split] += more
                reads.until_read(written)

    def test_a_split_that_comes_later_is_read(self) -> None:
        """A search finds it, once."""
        if not self.splits_come:
            raise not_offered("splits_come")
        written = self._write_some()
        with self._running(CallSteps()) as reads:
            reads.until_read(written)
            written[2] = [2 * PER_SPLIT]
            self.write(2, written[2])
            reads.until_read(written)

    def test_a_process_that_dies_changes_nothing(self) -> None:
        """It dies before and after each search and read, and before each opening. Another one goes on (G1, 5.2).

        The death after a read is the one before its commit, and a death before a read comes after the commit of the one
        before.
        """
        written = self._write_some()
        for step in ("before a search", "after a search", "before a reader opens", "before a read", "after a read"):
            for at in range(_DEATHS):
                steps = CallSteps(step, at)
                with self._running(steps) as reads:
                    reads.until_read(written)
                written = self._written_again(written)
                if not steps.died:
                    break

    def test_a_split_that_moves_goes_on_at_its_position(self) -> None:
        """It moves away after each of its reads, and its former reader stays open for a while (G1)."""
        written = self._write_some()
        with self._running(CallSteps()) as reads:
            for _ in range(_DEATHS):
                reads.move()
                with suppress(ProcessDiedError):
                    reads.harness.advance_clock(seconds(1))
            reads.until_read(written)

    def test_an_idle_split_follows_the_clock(self) -> None:
        """A source that says ``behind`` may have the option ``idle_after`` (4.5)."""
        written = self._write_some()
        with self._running(CallSteps()) as reads:
            reads.until_read(written)
            known = all(state.behind is not None for state in reads.states())
        if not known:
            raise not_offered("reads that say behind")
        written = self._written_again(written)
        with self._running(CallSteps(), idle_after=seconds(5)) as reads:
            reads.until_read(written)
            reads.until(
                lambda: reads.harness.watermark("records-reader") >= reads.harness.now - seconds(60),
                "a split with behind=0 follows the clock, but the watermark stands still",
            )

    def test_the_stream_ends_with_its_splits(self) -> None:
        """All splits have ended, and the source says that no other one comes: so windows are complete."""
        written = self._write_some()
        self.end()
        with self._running(CallSteps()) as reads:
            reads.until_read(written)
            reads.until(
                lambda: reads.harness.watermark("records-reader") == MAX_TIMESTAMP,
                "the source has ended: then splits() says final=True, and a read of each split says ended=True",
            )

    def test_a_bad_record_does_not_stop_its_split(self) -> None:
        """What cannot be read comes as a BadRecord, in its place and once."""
        self.write_bad(0)
        written = self._write_some()
        with self._running(CallSteps(), bad=_BAD) as reads:
            reads.until_read(written)
            bad = reads.harness.values(_BAD)
            once = len(bad) == 1 and isinstance(bad[0], BadRecord)
            require(once, f"what cannot be read is one BadRecord in the place of a value, not {bad}")
            require(bad[0].error and bad[0].place, f"a BadRecord says what is wrong, and where: {bad[0]}")

    def test_a_system_that_is_away_loses_nothing(self) -> None:
        """Calls raise while it is away, or do not say that nothing waits. Readers go on when it is back (G7)."""
        away = self.away()
        written = self._write_some()
        with self._running(CallSteps()) as reads:
            with away:
                reads.pass_time()
                silent = not reads.harness.failures and any(state.behind == 0 for state in reads.states())
                require(not silent, "the other system is away: a read raises, or does not say behind=0")
            reads.raised = Exception  # it may need a moment
            reads.until_read(written)

    # What the tests do.

    @contextmanager
    def _running(self, steps: CallSteps, **options: Any) -> Iterator[_Reads]:
        reads = _Reads(self, steps, {**self.options, **options})
        try:
            yield reads
        finally:
            reads.harness.close()


class _Reads:
    """A topology that reads the source of a test."""

    def __init__(self, test: SourceContract[Any, Any], steps: CallSteps, options: dict[str, Any]) -> None:
        self._test = test
        self._steps = steps
        self._options = options
        self.raised: type[Exception] = ProcessDiedError
        """What is no mistake of the source."""
        self.harness = TopologyHarness(self._topology(), now=start_of_clock())
        steps.began = True

    def _topology(self) -> TopologyGraph:
        topology = Topology("contract")
        source = probed_source(self._test.make_source(), self._steps)
        topology.source(_STREAM, self._test.record_type, source, **self._options)
        return topology

    def move(self) -> None:
        """Go on in another process, which has no reader yet. The former one keeps its open readers."""
        self._steps.dead = False
        with suppress(ProcessDiedError):
            self.harness.update(self._topology())

    def states(self) -> list[SplitState[Any]]:
        """How far each split was read."""
        found = self.harness.state("records-splits", "")
        return [self.harness.state("records-reader", name) for name in (found.names if found else ())]

    def pass_time(self) -> None:
        """Let time pass, until each call has been tried again. What they raise is in the harness's failures."""
        for by in (seconds(1), _BACK_OFF):
            with suppress(Exception):
                self.harness.advance_clock(by)

    def until(self, holds: Callable[[], bool], rule: str) -> None:
        """Let time pass until ``holds``, and go on in another process if this one dies."""
        end = deadline()
        while not holds():
            with suppress(self.raised):
                self.harness.advance_clock(seconds(1))
            if self._steps.dead:
                self.move()
            require(holds() or time.monotonic() < end, rule)
            time.sleep(0 if holds() else POLL_SECONDS)

    def until_read(self, written: dict[int, list[int]]) -> None:
        """Read until all is there, and look that it is there once, in the order of each split."""
        count = sum(map(len, written.values()))
        stream = self.harness.produced
        self.until(lambda: len(stream(_STREAM)) >= count, f"some records never came: {written} are there")
        with suppress(Exception):
            self.harness.advance_clock(_A_WHILE)
        numbers = [self._test.number_of(one.value) for one in stream(_STREAM)]
        for split, expected in written.items():
            own = [number for number in numbers if number // PER_SPLIT == split]
            require(own == expected, f"the records {expected} are in a split, and {own} were read")
