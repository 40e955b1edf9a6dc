"""The contract of sinks: batches come again, in this process and in others, and each takes effect once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, TypeVar

from millwheel.model.time import seconds
from millwheel.streams.topology import Topology
from millwheel.testing.connectors.probes import CallSteps, ProcessDiedError, probed_sink
from millwheel.testing.connectors.rules import require, start_of_clock
from millwheel.testing.connectors.writers import WriterRules
from millwheel.testing.harness import TopologyHarness

__all__ = ["SinkContract"]

T = TypeVar("T")

_DEATHS: Final = 4
"""At how many of a step's first times a process dies, each in a run of its own."""
_KEYS: Final = 3
_BACK_OFF: Final = seconds(60)
"""The longest time until a failing hook is tried again."""


class SinkContract(WriterRules[T]):
    """What must hold of a sink, as tests. A subclass makes the sink and reads what it has stored.

    It has many methods: each that begins with ``test_`` is a rule. For example, a sink that writes to a dictionary::

        class TestTable(SinkContract[int]):
            def setup_method(self) -> None:
                self.table: dict[str, list[int]] = {}

            def make_sink(self) -> Sink[int]:
                return Table(self.table)

            def stored(self) -> Sequence[int]:
                return [number for batch in self.table.values() for number in batch]

    pytest runs them, and so does unittest if the class inherits from ``unittest.TestCase``, too. What the other system
    needs is made by a fixture with ``autouse=True``, or by ``setUp``.
    """

    def test_each_record_is_written_once(self) -> None:
        """Each record is stored once, and those of a key in their order (G1, G15)."""
        self._sell(range(20), CallSteps())

    def test_a_process_that_dies_changes_nothing(self) -> None:
        """It dies before a writer opens, and before and after each write. Another one goes on (G1).

        The death after a write is the one before its commit: the batch comes again.
        """
        begin = 0
        for step in ("before a writer opens", "before a write", "after a write"):
            for at in range(_DEATHS):
                steps = CallSteps(step, at)
                self._sell(range(begin, begin + 12), steps)
                begin += 12
                if not steps.died:
                    break

    # What the tests do.

    def _sell(self, numbers: range, steps: CallSteps) -> None:
        """Let a topology write these records, which come one after the other."""
        before = sorted(self.stored())
        name = f"{self.topology}-{numbers.start}"
        with TopologyHarness(self._topology(name, steps), now=start_of_clock()) as harness:
            for number in numbers:
                self._step(harness, name, steps, number)
            for _ in range(4):
                self._step(harness, name, steps)
        self._check(before, numbers)

    def _step(self, harness: TopologyHarness, name: str, steps: CallSteps, number: int | None = None) -> None:
        """Send a record, or let time pass. If the process dies, go on in another one."""
        with suppress(ProcessDiedError):
            if number is None:
                harness.advance_clock(_BACK_OFF)
            else:
                harness.send("records", self.value(number), harness.now)
        while steps.dead:
            steps.dead = False
            with suppress(ProcessDiedError):
                harness.update(self._topology(name, steps))

    def _check(self, before: Sequence[int], numbers: Sequence[int]) -> None:
        stored = list(self.stored())
        expected = sorted([*before, *numbers])
        require(sorted(stored) == expected, f"each record is stored once: {expected}, and not {sorted(stored)}")
        for key in range(_KEYS) if self.keeps_order else ():
            own = [number for number in stored if number in numbers and _key_of(number) == key]
            require(own == sorted(own), f"the records of a key keep their order, but are stored as {own}")

    def _topology(self, name: str, steps: CallSteps) -> Topology:
        topology = Topology(name)
        records = topology.source("records", self.record_type).key_by(lambda value: _key_of(self.number_of(value)))
        records.to("table", probed_sink(self.make_sink(), steps), shards=2, batch_records=3)
        return topology


def _key_of(number: int) -> int:
    """A key has two records one after the other, so that they may be in one batch."""
    return number // 2 % _KEYS
