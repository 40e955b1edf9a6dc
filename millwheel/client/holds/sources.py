"""Why the low watermark of a source stands: which injector process holds it, or which key function."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from millwheel.client.control import ControlClient
from millwheel.client.holds.cause import HoldCause, and_paused
from millwheel.client.holds.keyless import held_by_key
from millwheel.client.holds.watermark import GroupWatermark
from millwheel.model.incarnation import INJECTOR_PREFIX
from millwheel.model.time import Duration, Timestamp, format_duration, format_timestamp
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import cluster_pb2
from millwheel.rpc.v1 import watermark_pb2 as watermarks
from millwheel.rpc.v1.watermark_pb2 import HoldKind

__all__ = ["injector_cause", "source_cause", "unfed_remedy"]


async def source_cause(found: GroupWatermark, name: str, client: ControlClient) -> HoldCause:
    """Return why the watermark of the source ``name`` stands."""
    stream = found.group.removeprefix(INJECTOR_PREFIX)
    cause = _and_unkeyed(injector_cause(found, stream, name), found, await client.hook_failures(stream=stream))

    def reads(record: catalog.TopologyRecord) -> bool:
        return any(edge.stream == stream for one in record.spec.computations for edge in one.inputs)

    return await and_paused(cause, client, reads)


def injector_cause(found: GroupWatermark, stream: str, name: str) -> HoldCause:
    """Return what an injector process of ``stream`` does or fails to do, so that the low watermark stands.

    ``name`` is the name of the source in the texts.
    """
    row = found.row
    if row is None:
        text = f"{name}: no injector process has announced itself"
        return HoldCause("injector", name, text, unfed_remedy(stream))
    who = f"{name}: injector process {row.process!r}"
    end = (
        "Only if it never sends again, end it for good, and the stream with it if no other process is left: "
        f"`millwheel injector finish {stream} {row.process}`"
    )
    if row.sequencer == 0:
        return HoldCause(
            "injector", name, f"{who} is expected, and has never announced itself", f"start it. {end}", "", row.process
        )
    if row.idle:
        text = f"{who} is idle, and no other is active"
        return HoldCause("injector", name, text, f"{_raise_it(stream, row.process)}. {end}", "", row.process)
    if row.hold.kind == HoldKind.HOLD_KIND_INJECTOR:
        silent = row.HasField("silence_us")
        since = f"for {format_duration(Duration(row.silence_us))}" if silent else "since the server started"
        at = format_timestamp(Timestamp(row.watermark_us))
        text = f"{who} has reported nothing {since}; its low watermark is {at}"
        remedy = f"see whether it runs, and start it again under the same name. {end}"
        return HoldCause("injector", name, text, remedy, "", row.process)
    text = f"{who} last published {_published(row)}: it promises no more yet"
    return HoldCause("injector", name, text, process=row.process)


def unfed_remedy(stream: str) -> str:
    """Return what to do about a stream that no injector process has ever fed."""
    return (
        "start one. Only if none will ever send into it, end the stream for good: "
        f"`millwheel injector finish {stream} --all`"
    )


def _raise_it(stream: str, process: str) -> str:
    return f"send something, or raise it by `millwheel injector advance {stream} {process} --to now`"


def _published(row: watermarks.IntervalWatermark) -> str:
    """Return an injector process's last low watermark, and the time since that report."""
    ago = f", {format_duration(Duration(row.silence_us))} ago" if row.HasField("silence_us") else ""
    return f"{format_timestamp(Timestamp(row.watermark_us))}{ago}"


def _and_unkeyed(
    cause: HoldCause, found: GroupWatermark, failing: Iterable[cluster_pb2.ComputationFailures]
) -> HoldCause:
    """Return the cause, or the failing key function if records that wait for their keys hold the watermark."""
    held = None if found.row is None else held_by_key(found.row, failing)
    if found.row is None or held is None:
        return cause
    one, key = held
    place = f"{one.topology}/{one.computation}"
    text = (
        f"{cause.name}: the {key.extractor} for computation {place} raises; records wait for their keys in injector "
        f"process {found.row.process!r}, which last published {_published(found.row)}"
    )
    return replace(cause, kind="key", text=text, notes=[one.text], subject=place)
