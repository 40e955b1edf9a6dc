"""The authority's low watermark of one group, with the report that holds it."""

from __future__ import annotations

from dataclasses import dataclass

from millwheel.client.authorities import MasterAddresses
from millwheel.client.control import ControlClient
from millwheel.client.holds.names import GroupNames
from millwheel.client.shards import ShardedWatermarks
from millwheel.model.incarnation import is_injector
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import watermark_pb2 as watermarks
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.rpc.watermarks import WatermarkReport

__all__ = ["GroupWatermark", "groups_of", "held_by", "kind_name", "open_authority", "read_watermark"]


@dataclass(frozen=True, slots=True)
class GroupWatermark:
    """The broadcast low watermark of a computation or source.

    ``row`` is the first report with the smallest value, or None if the authority has none.
    """

    group: str
    value: int = MIN_TIMESTAMP
    row: watermarks.IntervalWatermark | None = None


async def open_authority(client: ControlClient, timeout: float) -> ShardedWatermarks:
    """Return a client of the cluster's authority. ``client`` must have called the leading master before."""
    return ShardedWatermarks(await MasterAddresses.ask(client.address, timeout), on_refused=_ignore)


def _ignore(report: WatermarkReport) -> None:
    """Do nothing: this client sends no reports, so the authority refuses none."""


async def read_watermark(client: ShardedWatermarks, group: str) -> GroupWatermark:
    """Return the authority's value for a group: minus infinity without a row if the authority does not know it."""
    try:
        found = await client.explain(group, 1)
    except RequestError as error:
        if error.code is not FailureCode.NOT_FOUND:
            raise
        return GroupWatermark(group)
    return GroupWatermark(group, found.watermark_us, found.holding[0] if found.holding else None)


def kind_name(kind: HoldKind.ValueType) -> str:
    """Return the kind's name in lower case: ``input``, ``record``, …"""
    return HoldKind.Name(kind).removeprefix("HOLD_KIND_").lower()


def held_by(found: GroupWatermark, names: GroupNames) -> str:
    """Return the text of a table cell: what holds a watermark."""
    row = found.row
    if found.value == MAX_TIMESTAMP:
        return "nothing: it has ended"
    if row is None:
        missing = "no injector process has announced itself" if is_injector(found.group) else "no owner has reported"
        return missing if found.value == MIN_TIMESTAMP else "nothing"
    if row.process:
        return f"injector process {row.process}" + (" (idle)" if row.idle else "")
    if row.hold.kind == HoldKind.HOLD_KIND_INPUT:
        return f"input: {', '.join(map(names.show, groups_of(row)))}"
    subject = row.hold.subject
    return kind_name(row.hold.kind) + (f": {names.in_words(subject)}" if subject else "")


def groups_of(row: watermarks.IntervalWatermark) -> list[str]:
    """Return the groups that an interval waits for, if its input holds its watermark."""
    return [one for one in row.hold.subject.split(", ") if one]
