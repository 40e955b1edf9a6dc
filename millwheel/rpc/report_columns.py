"""The watermark reports of many intervals by columns, and their wire form (section 7.2).

A report costs an authority the look-up of its interval, and no message and no object of its own. The form is stateless:
a report names its interval and its sequencer as any other does, so an authority judges it by itself (G4).

Invariant: a reporter sends columns only in a call whose authority has stated that it reads them. An older authority
would take them for an empty message, and would hold every watermark.

Pure: this module opens no connection. Watermarks are microseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from millwheel.model.incarnation import is_injector
from millwheel.model.keys import KeyInterval
from millwheel.rpc.v1 import watermark_pb2
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.rpc.watermarks import WatermarkReport, check_names, invalid, report_to_wire

__all__ = ["ReportColumns", "columns_from_wire", "columns_to_wire", "request_to_wire"]

_LEAST_REPORTS: Final = 3
"""The least reports of a group that go by columns. For fewer of them, both sides take longer to handle the lists."""

ReportRow: TypeAlias = tuple[bytes, bytes, int, int, int, int, HoldKind.ValueType, str]
"""First key, end or nothing, sequencer, number, watermark, input watermark, hold and subject."""


class ReportColumns(NamedTuple):
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

    def __len__(self) -> int:
        """The number of reports."""
        return len(self.starts)

    def rows(self) -> Iterator[ReportRow]:
        """The reports one by one, without an object for each."""
        return zip(*self[1:], strict=True)

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
        return [self.report(place) for place in range(len(self))]


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
    """Return reports about intervals of ``group`` as a message."""
    intervals = [report.member for report in reports if isinstance(report.member, KeyInterval)]
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


def columns_from_wire(message: watermark_pb2.IntervalColumns, where: str = "") -> ReportColumns:
    """Return the reports of a message; RequestError (INVALID_ARGUMENT) names a wrong field, below ``where``."""
    check_names(**{f"{where}group": message.group})
    if not message.group or is_injector(message.group):
        raise invalid(f"{where}group", f"is {message.group!r}: name an incarnation, whose members are intervals")
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
    lengths = {len(column) for column in columns[1:]}
    if len(lengths) > 1:
        raise invalid(where.rstrip("."), f"has lists of {sorted(lengths)} elements: each has one for each interval")
    for place, (start, end, sequencer) in enumerate(zip(columns.starts, columns.ends, columns.sequencers, strict=True)):
        if not sequencer:
            raise invalid(f"{where}sequencers[{place}]", "is 0: use the one that the assignment drew, 1 or larger")
        if end and end <= start:
            raise invalid(f"{where}ends[{place}]", f"is {end!r}, not above the start {start!r}: the interval is empty")
    return columns
