"""An authority core on a memory store, driven step by step: the shell without its tasks and timers."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from itertools import count
from typing import Any, TypeVar

from millwheel.authority.core import AuthorityCore, CoreSettings, Effects
from millwheel.authority.shares import Refusal
from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.watermarks import Member, WatermarkReport
from millwheel.store.memory import MemoryStore

T = TypeVar("T")

JOURNAL = "authority.0"
COMPUTATION = "window-counter.17"
STREAM = "queries"
INJECTOR = "injector/queries"


def now(step: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits, as those of the memory store do."""
    try:
        step.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("the store waited")


def cut(*bounds: bytes) -> list[KeyInterval]:
    """All keys, cut at ``bounds``."""
    starts = [b"", *bounds]
    return [KeyInterval(start, end) for start, end in zip(starts, [*bounds, None], strict=True)]


class Shard:
    """One shard through restarts. ``broadcasts`` is what listeners know; it asserts that nothing goes back (G7)."""

    def __init__(self, settings: CoreSettings | None = None, store: MemoryStore | None = None) -> None:
        self.settings = settings
        self.store = store or MemoryStore()
        if store is None:
            now(self.store.create_journal(JOURNAL))
        self.broadcasts: dict[str, int] = {}
        self.answers: dict[int, int] = {}
        self.snapshots = 0
        self.accepted: list[tuple[str, Member, int]] = []
        """What listeners know of accepted sequencers, in order."""
        self.removed: list[str] = []
        """The computations that listeners know to be gone."""
        self._tokens = count()
        self._sequencer = 0
        self.time = 0
        self.core = self.restart()

    def restart(self) -> AuthorityCore:
        """Fence with a larger sequencer and read everything back: a new process."""
        self._sequencer += 1
        head = now(self.store.fence(JOURNAL, self._sequencer))
        core = AuthorityCore(JOURNAL, self._sequencer, head, self.settings)
        core.restore(
            now(self.store.read_parts(JOURNAL, head.parts)),
            now(self.store.read_entries(JOURNAL, head.floor + 1, head.commit)),
        )
        for name, value in core.computations().items():
            self._received(name, value)
        for name, value in self.broadcasts.items():
            assert core.broadcast(name) >= value, f"{name} went back to {core.broadcast(name)} in a restart"
        self.core = core
        return core

    def accept(self, member: Member, sequencer: int, computation: str = COMPUTATION, *, report_number: int = 0) -> int:
        """Accept and journal; the value answered."""
        token = self.begin_accept(member, sequencer, computation, report_number=report_number)
        self.flush()
        return self.answers[token]

    def begin_accept(
        self, member: Member, sequencer: int, computation: str = COMPUTATION, *, report_number: int = 0
    ) -> int:
        """Accept without journaling; the token."""
        token = next(self._tokens)
        self.core.accept_sequencer(token, computation, member, sequencer, report_number)
        return token

    def expect(self, *names: str, as_of: int = 0) -> None:
        self.core.expect_injectors(next(self._tokens), STREAM, names, as_of)
        self.flush()

    def remove(self, computation: str, up_to: int = 0) -> int:
        token = next(self._tokens)
        self.core.remove(token, computation, up_to)
        self.flush()
        if computation not in self.core.computations():
            self.broadcasts.pop(computation, None)
        return self.answers[token]

    def say(
        self, member: Member, sequencer: int, watermark: int, computation: str = COMPUTATION, **more: Any
    ) -> list[Refusal]:
        """Report, without journaling."""
        return self.core.report([WatermarkReport(computation, member, sequencer, watermark, **more)], self.time)

    def report(
        self, member: Member, sequencer: int, watermark: int, computation: str = COMPUTATION, **more: Any
    ) -> int:
        """Report, journal and broadcast; what is known of the computation then. The report must not be refused."""
        assert self.say(member, sequencer, watermark, computation, **more) == []
        self.flush()
        return self.known(computation)

    def inject(self, process: str, sequencer: int, watermark: int, *, idle: bool = False) -> int:
        return self.report(process, sequencer, watermark, INJECTOR, idle=idle)

    def known(self, computation: str = COMPUTATION) -> int:
        """What was last broadcast."""
        return self.broadcasts.get(computation, MIN_TIMESTAMP)

    def own_all(self, intervals: Iterable[KeyInterval] = (ALL_KEYS,), first: int = 1) -> list[tuple[KeyInterval, int]]:
        """Accept ``intervals``, with sequencers from ``first`` on."""
        owned = list(zip(intervals, count(first), strict=False))
        for keys, sequencer in owned:
            self.accept(keys, sequencer)
        return owned

    def flush(self) -> None:
        """Journal and broadcast until nothing waits."""
        while self.append():
            self.perform(self.core.appended())

    def append(self) -> bool:
        """Journal one append, if there is one, without performing its effects."""
        append = self.core.next_append()
        if append is None:
            return False
        now(self.store.append(JOURNAL, append))
        return True

    def perform(self, effects: Effects) -> None:
        """What the shell does once an append is journaled."""
        self.answers.update(effects.answers)
        for name, value in effects.values.items():
            self._received(name, value)
        self.accepted += effects.sequencers
        self.removed += effects.removed
        if effects.delete_below is not None:
            now(self.store.delete_entries(JOURNAL, effects.delete_below))
            now(self.store.delete_parts(JOURNAL, effects.delete_parts))
        if effects.snapshot is not None:
            for part, blob in effects.snapshot.parts():
                now(self.store.write_part(JOURNAL, part, blob))
            self.core.snapshot_written(effects.snapshot)
            self.snapshots += 1

    def _received(self, name: str, value: int) -> None:
        assert value >= self.broadcasts.get(name, MIN_TIMESTAMP), f"{name} went back to {value}"
        self.broadcasts[name] = value
