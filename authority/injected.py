"""An injector's watermark by processes (5.2).

With an expected set, the minimum is over exactly that set. Without one, it is over every announced process, and the
value is unknown before the first.

An idle process leaves the minimum until it reports again. If all processes are idle, the value does not change: it
stays at the minimum that held just before the last one became idle. A report of idleness has two effects in this
order: its watermark counts, then the process leaves the minimum. A finished process stays at plus infinity for ever.
"""

from __future__ import annotations

from collections.abc import Iterable

from millwheel.authority.group import Group
from millwheel.authority.members import Explanation, MemberState, MemberView
from millwheel.authority.percentiles import Work, work_of
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.rpc.watermarks import AcceptRefusedError, ReportNotReceivedError, WatermarkReport

__all__ = ["InjectorGroup"]


class InjectorGroup(Group[str]):
    """The processes of one stream's injector, and their minimum."""

    __slots__ = ("_misses", "_promised", "expected", "expected_as_of")

    of_processes = True

    def __init__(
        self,
        name: str,
        value: int = MIN_TIMESTAMP,
        states: Iterable[MemberState[str]] = (),
        expected: Iterable[str] = (),
        expected_as_of: int = 0,
    ) -> None:
        super().__init__(name, value)
        self.expected = frozenset(expected)
        self.expected_as_of = expected_as_of
        self._promised: int = MIN_TIMESTAMP
        """The minimum when the last process became idle. The value reaches it with that report, in the same entry."""
        self._misses = True
        """Whether a missing process holds the minimum: an expected one, or the first one."""
        for state in states:
            self._put(state)
        self._look_for_missing()

    def _look_for_missing(self) -> None:
        self._misses = not self._states or not self.expected <= self._states.keys()

    def smallest(self) -> int:
        """The minimum over all processes. A missing one is at minus infinity."""
        return MIN_TIMESTAMP if self._misses else super().smallest()

    def expect(self, names: Iterable[str], as_of: int = 0) -> None:
        """Replace the expected set. Processes outside it are forgotten.

        ``as_of``: the coordinator's revision at which the set was read. Nothing changes if a newer one is known.
        """
        if 0 < as_of < self.expected_as_of:
            return
        self.expected, self.expected_as_of = frozenset(names), max(as_of, self.expected_as_of)
        for state in list(self._states.values()):
            if self.expected and state.member not in self.expected:
                self._drop(state)
        self._look_for_missing()

    def accept(self, process: str, sequencer: int, report_number: int = 0) -> MemberState[str]:
        """Accept ``sequencer`` as the owner of ``process`` (G4).

        A process starts from its own last value. Raises AcceptRefusedError if a larger sequencer owns it, or if it is
        not expected. Idempotent. With ``report_number`` this is only a query and changes nothing. It raises
        ReportNotReceivedError if neither that report nor a later one was received.
        """
        if self.expected and process not in self.expected:
            known = ", ".join(sorted(self.expected))
            raise AcceptRefusedError(f"{self.name} expects no process {process!r}, only: {known}")
        last = self._states.get(process)
        if last is not None and last.sequencer == sequencer and last.last_report >= report_number:
            return last
        if last is not None and last.sequencer > sequencer:
            raise AcceptRefusedError(
                f"sequencer {sequencer} for process {process!r} of {self.name}: it holds sequencer {last.sequencer}"
            )
        if report_number:
            raise ReportNotReceivedError(process, report_number)
        made = MemberState(process, sequencer, MIN_TIMESTAMP if last is None else last.watermark)
        self.put(made)
        return made

    def sequencer_of(self, process: str) -> int:
        """The accepted sequencer of a process; 0 if it has none."""
        state = self._states.get(process)
        return 0 if state is None else state.sequencer

    def put(self, made: MemberState[str]) -> None:
        """Set the state of a process, from an acceptance or from the journal."""
        if (last := self._states.get(made.member)) is not None:
            self._drop(last)
        self._put(made)
        self._look_for_missing()

    def _is_superseded(self, report: WatermarkReport) -> bool:
        process = report.member
        assert isinstance(process, str)
        state = self._states.get(process)
        unexpected = bool(self.expected) and process not in self.expected
        return unexpected or (state is not None and state.sequencer > report.sequencer)

    def _at_rest(self) -> int:
        """The promise of the idle processes. Plus infinity if all have finished."""
        idle = [state.watermark for state in self._states.values() if state.watermark != MAX_TIMESTAMP]
        return max(self._promised, min(idle)) if idle else MAX_TIMESTAMP

    def _becomes_idle(self) -> None:
        self._promised = max(self._promised, self.smallest())

    def states(self) -> list[MemberState[str]]:
        """Return a copy of all processes' states, by name."""
        return sorted(self._states.values(), key=lambda state: state.member)

    def work(self, since: int) -> Work:
        """Return the pending work that working processes published since ``since``.

        Idle, finished and missing processes do not count. Processes read different records, so the bound comes from
        the process that is furthest behind.
        """
        return work_of([state for state in self._states.values() if _works(state)], since, min)

    def explain(self, watermark: int, now: int, limit: int) -> Explanation:
        """Explain ``watermark``. Expected processes that never announced themselves are rows too."""
        missing = sorted(self.expected - self._states.keys())
        states = self.states()
        holding = self._holding(watermark, states, bool(missing))
        return Explanation(
            self.name,
            watermark,
            _views(missing, holding, now, limit),
            _views(missing, states, now, limit),
            len(missing) + len(holding),
            len(missing) + len(states),
        )

    @staticmethod
    def _holding(value: int, states: list[MemberState[str]], others_missing: bool) -> list[MemberState[str]]:
        """Return the announced processes that hold the value back.

        If no process works, the value waits for those that may still send records. The one whose promise is the value
        comes first. A process that promised less left the minimum before, and comes last.
        """
        working = [state for state in states if _works(state)]
        if working:
            smallest = min(state.watermark for state in working)
            if others_missing and smallest > MIN_TIMESTAMP:
                return []
            return [state for state in working if state.watermark == smallest]
        idle = [state for state in states if state.watermark != MAX_TIMESTAMP and not others_missing]
        return sorted(idle, key=lambda state: (state.watermark < value, state.watermark))


def _works(state: MemberState[str]) -> bool:
    """Return whether ``state`` takes part in the minimum: it is neither idle nor finished."""
    return not state.idle and state.watermark != MAX_TIMESTAMP


def _missing(process: str) -> MemberView:
    return MemberView(
        process, 0, MIN_TIMESTAMP, MIN_TIMESTAMP, HoldKind.HOLD_KIND_INJECTOR, process, idle=False, silence=None
    )


def _views(missing: list[str], states: list[MemberState[str]], now: int, limit: int) -> list[MemberView]:
    """Return the first ``limit`` rows: those of missing processes, then those of ``states``."""
    rows = [_missing(name) for name in missing[:limit]]
    return rows + [state.view(now) for state in states[: limit - len(rows)]]
