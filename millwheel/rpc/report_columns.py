"""The watermark reports of many intervals by columns, and their wire form (section 7.2).

A report costs an authority the look-up of its interval, and no message and no object of its own. The form is stateless:
a report names its interval and its sequencer as any other does, so an authority judges it by itself (G4).

Invariant: a reporter sends columns only in a call whose authority has stated that it reads them. An older authority
would take them for an empty message, and would hold every watermark.

Pure: this module opens no connection. Watermarks are microseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from millwheel.model.incarnation import is_injector
from millwheel.model.keys import KeyInterval
from millwheel.rpc.v1 import watermark_pb2
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.rpc.watermarks import WatermarkReport, check_names, invalid, report_to_wire

__all__ = ["MAX_REPORTS", "ReportColumns", "check_count", "columns_from_wire", "columns_to_wire", "request_to_wire"]

MAX_REPORTS: Final = 10_000
"""The most reports of a request. Reporters of all versions send up to 1,000. An authority handles a request in one turn
of its event loop, and answers a refused report by columns with the group's name, which came once (G13)."""

_LEAST_REPORTS: Final = 3
"""The least reports of a group that go by columns. For fewer of them, both sides take longer to handle the lists."""

_OTHER_LISTS: Final = (
    "ends",
    "sequencers",
    "numbers",
    "watermarks_us",
    "input_watermarks_us",
    "holds",
    "subjects",
)
"""The lists of a message that have an element for each of its ``starts``."""

ReportRow: TypeAlias = tuple[bytes, bytes, int, int, int, int, HoldKind.ValueType, str]
"""First key, end or nothing, sequencer, number, watermark, input watermark, hold and subject."""


@dataclass(frozen=True, slots=True)
class ReportColumns:
    """Reports of intervals of one group. All lists are of equal length. An empty end stands for none."""

    group: str
    starts: Sequence[bytes]
    ends: Sequence[bytes]
    sequencers: Sequence[int]
    numbers: Sequence[int]
    watermarks: Sequence[int]
    input_watermarks: Sequence[int]
    holds: Sequence[HoldKind.ValueType]
    subjects: Sequence[str]

    @property
    def count(self) -> int:
        """The number of reports."""
        return len(self.starts)

    def rows(self) -> Iterator[ReportRow]:
        """The reports one by one, without an object for each."""
        return zip(
            self.starts,
            self.ends,
            self.sequencers,
            self.numbers,
            self.watermarks,
            self.input_watermarks,
            self.holds,
            self.subjects,
            strict=True,
        )

    def report(self, place: int) -> WatermarkReport:
        """The report at ``place``. ValueError if its interval is empty."""
        end = self.ends[place] or None
        return WatermarkReport(
            self.group,
            KeyInterval(self.starts[place], end),
            self.sequencers[place],
            self.watermarks[place],
            self.input_watermarks[place],
            self.holds[place],
            self.subjects[place],
            number=self.numbers[place],
        )

    def reports(self) -> list[WatermarkReport]:
        """All reports."""
        return [self.report(place) for place in range(self.count)]


def request_to_wire(reports: Sequence[WatermarkReport], *, by_columns: bool) -> watermark_pb2.ReportRequest:
    """Return the message of reports.

    Args:
        reports: At most one of each member.
        by_columns: Whether the authority reads columns.
    """
    if not by_columns:
        return watermark_pb2.ReportRequest(intervals=[report_to_wire(report) for report in reports])
    single: list[watermark_pb2.IntervalWatermark] = []
    groups: dict[str, list[WatermarkReport]] = {}
    for report in reports:
        if isinstance(report.member, str) or report.pending is not None:
            single.append(report_to_wire(report))
        elif (group := groups.get(report.group)) is None:
            groups[report.group] = [report]
        else:
            group.append(report)
    request = watermark_pb2.ReportRequest(intervals=single)
    for name, group in groups.items():
        if len(group) < _LEAST_REPORTS:
            request.intervals.extend(map(report_to_wire, group))
        else:
            request.columns.append(columns_to_wire(name, group))
    return request


def columns_to_wire(group: str, reports: Sequence[WatermarkReport]) -> watermark_pb2.IntervalColumns:
    """Return reports about intervals of ``group`` as a message. Columns have no place for any other report."""
    intervals = [report.member for report in reports if isinstance(report.member, KeyInterval)]
    assert len(intervals) == len(reports), f"reports of {group!r} by columns that are of no interval"
    return watermark_pb2.IntervalColumns(
        group=group,
        starts=[keys.start for keys in intervals],
        ends=[keys.end or b"" for keys in intervals],
        sequencers=[report.sequencer for report in reports],
        numbers=[report.number for report in reports],
        watermarks_us=[report.watermark for report in reports],
        input_watermarks_us=[report.input_watermark for report in reports],
        holds=[report.hold for report in reports],
        subjects=[report.subject for report in reports],
    )


def check_count(request: watermark_pb2.ReportRequest) -> None:
    """Raise RequestError (INVALID_ARGUMENT) for more than ``MAX_REPORTS``.

    This looks at no report. Columns count as one report at least, so their number has the same bound.
    """
    count = len(request.intervals)
    for columns in request.columns:
        if count > MAX_REPORTS:
            break
        count += max(1, len(columns.starts))
    if count > MAX_REPORTS:
        fields = "intervals and columns"
        raise invalid(
            fields, f"have at least {count:,} reports: {MAX_REPORTS:,} are the most, so send several requests"
        )


def columns_from_wire(message: watermark_pb2.IntervalColumns, where: str = "") -> ReportColumns:
    """Return the reports of a message; RequestError (INVALID_ARGUMENT) names a wrong field, below ``where``."""
    check_names(**{f"{where}group": message.group})
    if not message.group or is_injector(message.group):
        raise invalid(f"{where}group", f"is {message.group!r}: name an incarnation, whose members are intervals")
    count = len(message.starts)
    for name in _OTHER_LISTS:
        if (length := len(getattr(message, name))) != count:
            raise invalid(f"{where}{name}", f"has {length} elements, and starts has {count}: one for each interval")
    columns = ReportColumns(
        message.group,
        list(message.starts),
        list(message.ends),
        list(message.sequencers),
        list(message.numbers),
        list(message.watermarks_us),
        list(message.input_watermarks_us),
        list(message.holds),
        list(message.subjects),
    )
    for place, (start, end, sequencer) in enumerate(zip(columns.starts, columns.ends, columns.sequencers, strict=True)):
        if not sequencer:
            raise invalid(f"{where}sequencers[{place}]", "is 0: use the one that the assignment drew, 1 or larger")
        if end and end <= start:
            raise invalid(f"{where}ends[{place}]", f"is {end!r}, not above the start {start!r}: the interval is empty")
    return columns
