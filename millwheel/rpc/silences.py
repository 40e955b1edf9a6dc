"""Whether an injector process that holds a low watermark is silent: one rule for the authority and the master. Pure."""

from __future__ import annotations

from millwheel.rpc.v1.watermark_pb2 import HoldKind

__all__ = ["injector_silence"]


def injector_silence(
    hold: HoldKind.ValueType, *, idle: bool, sequencer: int, silence: int | None, served: int
) -> int | None:
    """For how long a member of a group has reported nothing, in microseconds. None: it has nothing to report.

    Args:
        hold: What holds its low watermark.
        idle: Whether it is idle.
        sequencer: The one that was accepted. 0: the process is expected, and has never begun.
        silence: The time since its last report. None: there was none while this process served the shard.
        served: For how long this process serves the shard. It does not know of earlier reports.
    """
    if hold != HoldKind.HOLD_KIND_INJECTOR or idle or not sequencer:
        return None
    return served if silence is None else silence
