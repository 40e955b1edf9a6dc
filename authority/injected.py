"""An injector's watermark by processes (5.2).

With an expected set, the minimum is over exactly that set. Without one, it is over every announced process, and the
value is unknown before the first.

An idle process leaves the minimum until it reports again. If all processes are idle, the value does not change: it
stays at the minimum that held just before the last one became idle. A report of idleness has two effects in this
order: its watermark counts, then the process leaves the minimum. A finished process stays at plus infinity for ever.
"""

from __future__ import annotations

from collections.abc import Iterable

from millwheel.authority.percentiles import Work, work_of
from millwheel.authority.shares import Acceptance, Explanation, Refusal, Share, ShareView
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.rpc.watermarks import AcceptRefusedError, ReportNotReceivedError, WatermarkReport

__all__ = ["InjectorGroup"]


class InjectorGroup:
    """The processes of one stream's injector, and their minimum."""

    __slots__ = ("_processes", "_promised", "expected", "expected_as_of", "name", "percentiles", "value")

    def __init__(
        self,
        name: str,
        value: int = MIN_TIMESTAMP,
        shares: Iterable[Share[str]] = (),
        expected: Iterable[str] = (),
        expected_as_of: int = 0,
    ) -> None:
        self.name = name
        self.value: int = value
        self.percentiles: dict[int, int] = {}
        self.expected = frozenset(expected)
        self.expected_as_of = expected_as_of
        self._processes = {share.member: share for share in shares}
        self._promised: int = MIN_TIMESTAMP
        """The minimum when the last process became idle. The value reaches it with that report, in the same entry."""

    def smallest(self) -> int:
        """Return the minimum over the working processes, or the promise of the idle ones. MIN_TIMESTAMP: unknown."""
        if not self._processes or any(name not in self._processes for name in self.expected):
            return MIN_TIMESTAMP
        working = [share.watermark for share in self._processes.values() if _works(share)]
        if working:
            return min(working)
        idle = [share.watermark for share in self._processes.values() if share.watermark != MAX_TIMESTAMP]
        return max(self._promised, min(idle)) if idle else MAX_TIMESTAMP

    def expect(self, names: Iterable[str], as_of: int = 0) -> list[Share[str]]:
        """Replace the expected set. Return the shares of the processes outside it, which are forgotten.

        ``as_of``: the coordinator's revision at which the set was read. Nothing changes if a newer one is known.
        """
        if 0 < as_of < self.expected_as_of:
            return []
        self.expected, self.expected_as_of = frozenset(names), max(as_of, self.expected_as_of)
        dropped = [share for name, share in self._processes.items() if self.expected and name not in self.expected]
        for share in dropped:
            del self._processes[share.member]
        return dropped

    def accept(self, process: str, sequencer: int, report_number: int = 0) -> Acceptance[str]:
        """Accept ``sequencer`` as the owner of ``process`` (G4).

        A process starts from its own last value. Raises AcceptRefusedError if a larger sequencer owns it, or if it is
        not expected. Idempotent. With ``report_number`` this is only a query and changes nothing. It raises
        ReportNotReceivedError if neither that report nor a later one was received.
        """
        if self.expected and process not in self.expected:
            known = ", ".join(sorted(self.expected))
            raise AcceptRefusedError(f"{self.name} expects no process {process!r}, only: {known}")
        last = self._processes.get(process)
        if last is not None and last.sequencer == sequencer and last.last_report >= report_number:
            return Acceptance(last)
        if last is not None and last.sequencer > sequencer:
            raise AcceptRefusedError(
                f"sequencer {sequencer} for process {process!r} of {self.name}: it holds sequencer {last.sequencer}"
            )
        if report_number:
            raise ReportNotReceivedError(process, report_number)
        made = Share(process, sequencer, MIN_TIMESTAMP if last is None else last.watermark)
        self.put(made)
        return Acceptance(made, () if last is None else (last,))

    def put(self, made: Share[str]) -> None:
        """Set the share of a process, from an acceptance or from the journal."""
        self._processes[made.member] = made

    def report(self, report: WatermarkReport, now: int) -> Share[str] | Refusal | None:
        """Apply a report from the accepted sequencer; see :meth:`KeyedGroup.report`."""
        process = report.member
        assert isinstance(process, str)
        share = self._processes.get(process)
        if share is None or share.sequencer != report.sequencer:
            unexpected = bool(self.expected) and process not in self.expected
            newer = share is not None and share.sequencer > report.sequencer
            return Refusal(report, superseded=unexpected or newer)
        if not share.note(report, now) or share.watermark == MAX_TIMESTAMP:
            return None  # overtaken; or finished, which is final
        watermark = max(report.watermark, self.value)
        if (watermark, report.idle) == (share.watermark, share.idle):
            return None
        share.watermark, share.idle = watermark, False
        if report.idle:
            self._promised = max(self._promised, self.smallest())
            share.idle = True
        return share

    def shares(self) -> list[Share[str]]:
        """Return a copy of all processes' shares, by name."""
        return [share for _, share in sorted(self._processes.items())]

    def work(self, since: int) -> Work:
        """Return the pending work that working processes published since ``since``.

        Idle, finished and missing processes do not count. Processes read different records, so the bound comes from
        the process that is furthest behind.
        """
        return work_of([share for share in self._processes.values() if _works(share)], since, min)

    def explain(self, watermark: int, now: int, limit: int) -> Explanation:
        """Explain ``watermark``. Expected processes that never announced themselves are rows too."""
        missing = [_missing(name) for name in sorted(self.expected) if name not in self._processes]
        shares = self.shares()
        rows = missing + [share.view(now) for share in shares]
        holding = missing + [share.view(now) for share in self._holding(bool(missing))]
        return Explanation(self.name, watermark, holding[:limit], rows[:limit], len(holding), len(rows))

    def _holding(self, others_missing: bool) -> list[Share[str]]:
        """Return the announced processes that hold the value back."""
        working = [share for share in self.shares() if _works(share)]
        if working:
            smallest = min(share.watermark for share in working)
            return (
                []
                if others_missing and smallest > MIN_TIMESTAMP
                else [share for share in working if share.watermark == smallest]
            )
        # No process works: the value waits for those that may still send records.
        return [] if others_missing else [share for share in self.shares() if share.watermark != MAX_TIMESTAMP]


def _works(share: Share[str]) -> bool:
    """Return whether ``share`` takes part in the minimum: it is neither idle nor finished."""
    return not share.idle and share.watermark != MAX_TIMESTAMP


def _missing(process: str) -> ShareView:
    return ShareView(
        process, 0, MIN_TIMESTAMP, MIN_TIMESTAMP, HoldKind.HOLD_KIND_INJECTOR, process, idle=False, silence=None
    )
