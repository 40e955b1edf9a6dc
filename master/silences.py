"""Injector processes that are silent and hold a low watermark: texts for the health of the cluster. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from millwheel.client.holds.sources import injector_cause
from millwheel.client.holds.watermark import GroupWatermark
from millwheel.coordination.contract import DamagedValueError
from millwheel.model.catalog import ACTIVE_STATES, Catalog
from millwheel.model.incarnation import INJECTOR_PREFIX, GroupId, injector_group
from millwheel.model.time import seconds
from millwheel.rpc.silences import injector_silence
from millwheel.rpc.v1 import watermark_pb2 as watermarks

__all__ = ["injected_groups", "silence_texts"]

_PROBLEM_AFTER: Final = seconds(60)
"""A restart of a program takes less. It is the limit of the alert MillwheelInjectorSilent."""


def injected_groups(known: Catalog) -> list[GroupId]:
    """Return the groups of injector processes of all streams that are injected now. None of a damaged catalog."""
    with suppress(DamagedValueError):
        return [
            injector_group(stream.name)
            for _, record in known.live_topologies()
            if record.state in ACTIVE_STATES
            for stream in record.spec.streams
            if stream.injected
        ]
    return []


def silence_texts(explained: Mapping[str, watermarks.GroupExplanation]) -> Iterator[str]:
    """Yield a text with a remedy for each stream whose low watermark waits for a silent process.

    ``explained``: what the authority says of groups of injector processes.
    """
    for group, one in sorted(explained.items()):
        if one.HasField("holding") and _is_silent(one.holding, one.served_us):
            stream = group.removeprefix(INJECTOR_PREFIX)
            cause = injector_cause(GroupWatermark(group, one.watermark_us, one.holding), stream, f"source {stream}")
            yield f"{cause.text}. To mend it, {cause.remedy}"


def _is_silent(row: watermarks.IntervalWatermark, served: int) -> bool:
    """Whether the process has reported nothing for long. ``served``: for how long the shard is served."""
    silence = injector_silence(
        row.hold.kind,
        idle=row.idle,
        sequencer=row.sequencer,
        silence=row.silence_us if row.HasField("silence_us") else None,
        served=served,
    )
    return silence is not None and silence > _PROBLEM_AFTER
