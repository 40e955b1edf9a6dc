"""Hold explanations of an injector: its records without keys, or the process itself (section 4.5)."""

from __future__ import annotations

import pytest

from millwheel.client.holds.keyless import held_by_key
from millwheel.rpc.v1 import cluster_pb2
from millwheel.rpc.v1 import inspection_pb2 as inspection
from millwheel.rpc.v1 import watermark_pb2 as watermarks

KEY = inspection.KeyFunctionFailure(stream="in")
KEY.waiting.add(process="p", oldest_us=100)
FAILING = [
    cluster_pb2.ComputationFailures(computation="before", failures=inspection.HookFailures(blocked_keys=1)),
    cluster_pb2.ComputationFailures(computation="c", failures=inspection.HookFailures(key_functions=[KEY])),
]


def row(process: str = "p", sequencer: int = 7, at: int = 100) -> watermarks.IntervalWatermark:
    return watermarks.IntervalWatermark(process=process, sequencer=sequencer, watermark_us=at)


def test_records_waiting_for_keys_hold_their_processs_watermark() -> None:
    assert held_by_key(row(), FAILING) == (FAILING[1], KEY)
    assert held_by_key(row(), FAILING[:1]) is None


@pytest.mark.parametrize(
    "found",
    [row(process="q"), row(sequencer=0), row(at=99)],
    ids=["another process", "it never began", "it has promised less"],
)
def test_a_process_that_holds_the_watermark_itself_is_the_reason(found: watermarks.IntervalWatermark) -> None:
    assert held_by_key(found, FAILING) is None


def test_a_process_that_is_idle_or_silent_is_the_reason() -> None:
    idle, silent = row(), row()
    idle.idle = True
    silent.hold.kind = watermarks.HoldKind.HOLD_KIND_INJECTOR
    assert held_by_key(idle, FAILING) is None
    assert held_by_key(silent, FAILING) is None
