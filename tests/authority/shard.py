"""An authority core on a memory store. Tests drive it step by step, without tasks and timers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, assert_never

from millwheel.authority import messages as m
from millwheel.authority.core import AuthorityCore, CoreSettings
from millwheel.authority.members import Refusal
from millwheel.authority.pace import PaceSettings
from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.report_columns import columns_from_wire, columns_to_wire
from millwheel.rpc.watermarks import Member, WatermarkReport
from millwheel.store.contract import Append
from millwheel.store.memory import MemoryStore
from millwheel.testing.store_effects import result_of
from tests.driving import SingleCoreDriver

JOURNAL = "authority.0"
GROUP = "window-counter.17"
STREAM = "queries"
INJECTOR = "injector/queries"
AT_ONCE = PaceSettings(coalesce=0, longest_rest=0, idle=0, verify=1 << 60)
"""Only waiting changes are appended, at the next tick."""


def cut(*bounds: bytes) -> list[KeyInterval]:
    """All keys, cut at ``bounds``."""
    starts = [b"", *bounds]
    return [KeyInterval(start, end) for start, end in zip(starts, [*bounds, None], strict=True)]


def by_columns(reports: Sequence[WatermarkReport]) -> m.ReportsReceived:
    """The reports of intervals as they arrive by columns, through the form on the wire."""
    groups: dict[str, list[WatermarkReport]] = {}
    for report in reports:
        groups.setdefault(report.group, []).append(report)
    return m.ReportsReceived(columns=[columns_from_wire(columns_to_wire(name, some)) for name, some in groups.items()])


class Shard(SingleCoreDriver[m.AuthorityEvent, m.AuthorityEffect]):
    """One shard through restarts. ``broadcasts``: the watermarks that listeners know. None may go back (G7)."""

    core: AuthorityCore

    def __init__(self, settings: CoreSettings | None = None, pace: PaceSettings = AT_ONCE) -> None:
        super().__init__()
        self.settings = replace(settings or CoreSettings(), pace=pace)
        self.store = MemoryStore()
        result_of(self.store.create_journal(JOURNAL))
        self.broadcasts: dict[str, int] = {}
        self.answers: dict[int, int] = {}
        self.snapshots = 0
        self.accepted: list[tuple[str, Member, int]] = []
        """The accepted sequencers that listeners know, in order."""
        self._tokens = count()
        self._sequencer = 0
        self.restart()

    def restart(self) -> AuthorityCore:
        """Start a new process: fence with a larger sequencer, and read the journal."""
        self._sequencer += 1
        head = result_of(self.store.fence(JOURNAL, self._sequencer))
        core = AuthorityCore(JOURNAL, self._sequencer, head, self.settings)
        core.restore(
            result_of(self.store.read_parts(JOURNAL, head.parts)),
            result_of(self.store.read_entries(JOURNAL, head.truncation_point + 1, head.commit)),
        )
        for name, value in core.broadcasts().items():
            self._received(name, value)
        for name, value in self.broadcasts.items():
            assert core.broadcast(name) >= value, f"{name} went back to {core.broadcast(name)} in a restart"
        self.core = core
        assert self.post(m.Tick()) == []
        return core

    def call(self, event: m.AuthorityEvent) -> None:
        """Begin a call. A refusal is raised."""
        for effect in self.post(event):
            assert isinstance(effect, m.RefuseCall)
            raise effect.error

    def accept(self, member: Member, sequencer: int, group: str = GROUP, *, report_number: int = 0) -> int:
        """Accept, and journal that. Returns the answer."""
        token = self.begin_accept(member, sequencer, group, report_number=report_number)
        self.flush()
        return self.answers[token]

    def begin_accept(self, member: Member, sequencer: int, group: str = GROUP, *, report_number: int = 0) -> int:
        """Accept without journaling. Returns the token."""
        token = next(self._tokens)
        self.call(m.SequencerOffered(token, group, member, sequencer, report_number))
        return token

    def expect(self, *names: str, as_of: int = 0) -> None:
        self.call(m.InjectorsExpected(next(self._tokens), STREAM, names, as_of))
        self.flush()

    def remove(self, group: str, up_to: int = 0) -> int:
        token = next(self._tokens)
        self.call(m.RemovalRequested(token, group, up_to))
        self.flush()
        if group not in self.core.broadcasts():
            self.broadcasts.pop(group, None)
        return self.answers[token]

    def say(self, member: Member, sequencer: int, watermark: int, group: str = GROUP, **more: Any) -> list[Refusal]:
        """Report, without journaling."""
        return self.receive(m.ReportsReceived([WatermarkReport(group, member, sequencer, watermark, **more)]))

    def receive(self, event: m.ReportsReceived) -> list[Refusal]:
        """Receive reports, without journaling. Returns the refused ones."""
        effects = self.post(event)
        return [effect.refusal for effect in effects if isinstance(effect, m.RefuseReport)]

    def report(self, member: Member, sequencer: int, watermark: int, group: str = GROUP, **more: Any) -> int:
        """Report, journal and broadcast. Returns the group's watermark. No report may be refused."""
        assert self.say(member, sequencer, watermark, group, **more) == []
        self.flush()
        return self.known(group)

    def inject(self, process: str, sequencer: int, watermark: int, *, idle: bool = False) -> int:
        return self.report(process, sequencer, watermark, INJECTOR, idle=idle)

    def known(self, group: str = GROUP) -> int:
        """The group's last broadcast."""
        return self.broadcasts.get(group, MIN_TIMESTAMP)

    def own_all(self, intervals: Iterable[KeyInterval] = (ALL_KEYS,)) -> list[tuple[KeyInterval, int]]:
        """Accept ``intervals``, with sequencers from 1 on."""
        owned = list(zip(intervals, count(1), strict=False))
        for keys, sequencer in owned:
            self.accept(keys, sequencer)
        return owned

    def flush(self) -> None:
        """Journal and broadcast until nothing waits."""
        while self.append():
            self.handle(m.AppendJournaled())

    def next_append(self) -> Append | None:
        """The append to perform now, if there is one."""
        effects = self.post(m.Tick())
        if not effects:
            return None
        (effect,) = effects
        assert isinstance(effect, m.AppendChanges)
        return effect.append

    def append(self) -> bool:
        """Journal one append, if there is one, without performing its effects."""
        append = self.next_append()
        if append is not None:
            result_of(self.store.append(JOURNAL, append))
        return append is not None

    def begin(self, effect: m.AuthorityEffect) -> m.AuthorityEvent | None:
        """Perform an effect, as the driver does after an append."""
        match effect:
            case m.AnswerCall(token, watermark):
                self.answers[token] = watermark
            case m.BroadcastValues(values, sequencers):
                for name, value in values.items():
                    self._received(name, value)
                self.accepted += sequencers
            case m.DeleteJournaled(below, parts):
                result_of(self.store.delete_entries(JOURNAL, below))
                result_of(self.store.delete_parts(JOURNAL, parts))
            case m.WriteSnapshot(snapshot):
                for part, blob in snapshot.parts():
                    result_of(self.store.write_part(JOURNAL, part, blob))
                self.snapshots += 1
                return m.SnapshotWritten(snapshot)
            case m.AppendChanges() | m.RefuseCall() | m.RefuseReport():
                raise AssertionError(f"no journaled append allows {effect}")
            case _:
                assert_never(effect)
        return None

    def _received(self, name: str, value: int) -> None:
        assert value >= self.broadcasts.get(name, MIN_TIMESTAMP), f"{name} went back to {value}"
        self.broadcasts[name] = value
