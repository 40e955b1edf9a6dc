"""Health names injector processes that are silent and hold a low watermark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from millwheel.master.messages import PauseTopology, SubmitTopology
from millwheel.master.silences import injected_groups, silence_texts
from millwheel.rpc.v1 import watermark_pb2 as wire

from .harness import Cluster, Master, topology

GROUP = "injector/zeitgeist/queries"
SILENT: Mapping[str, Any] = {
    "process": "reader-1",
    "sequencer": 4,
    "hold": wire.WatermarkHold(kind=wire.HOLD_KIND_INJECTOR),
    "silence_us": 61_000_000,
    "watermark_us": 1_700_000_000_000_000,
}


def texts(served: int = 0, **row: Any) -> list[str]:
    holding = wire.IntervalWatermark(**row) if row else None
    found = wire.GroupExplanation(group=GROUP, watermark_us=1, holding=holding, served_us=served)
    return list(silence_texts({GROUP: found}))


def test_a_silent_process_is_named_with_a_remedy() -> None:
    assert texts(**SILENT) == [
        "source zeitgeist/queries: injector process 'reader-1' has reported nothing for 1 min 1 s; its low watermark "
        "is 2023-11-14T22:13:20Z. To mend it, see whether it runs, and start it again under the same name. Only if it "
        "never sends again, end it for good, and the stream with it if no other process is left: `millwheel injector "
        "finish zeitgeist/queries reader-1`"
    ]


def test_a_process_that_hangs_while_its_shard_moves_is_named() -> None:
    hanging = {**SILENT, "silence_us": None}
    assert texts(60_000_000, **hanging) == []
    (text,) = texts(60_000_001, **hanging)
    assert "injector process 'reader-1' has reported nothing since the server started" in text


@pytest.mark.parametrize(
    "other",
    [{"silence_us": 60_000_000}, {"silence_us": None}, {"idle": True}, {"sequencer": 0}, {"hold": None}],
    ids=["not for long", "authority restarted", "idle", "expected", "it reports"],
)
def test_what_is_not_silent_is_not_named(other: Mapping[str, Any]) -> None:
    assert texts(**{**SILENT, **other}) == []
    assert texts() == []


def test_streams_of_running_topologies_are_looked_at() -> None:
    cluster = Cluster()
    cluster.join("w1")
    master = Master(cluster)
    master.call(SubmitTopology(topology(), "r1"))
    assert injected_groups(cluster.catalog()) == [GROUP]
    master.call(PauseTopology("zeitgeist"))
    assert injected_groups(cluster.catalog()) == []
