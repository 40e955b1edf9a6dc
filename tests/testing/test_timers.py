"""The harness shows all timers of a key, those included that only the store holds (section 4.6, G13)."""

from __future__ import annotations

import millwheel as mw
from millwheel.testing import TopologyHarness
from millwheel.worker.interval import IntervalSettings
from tests.testing.inside import cluster_of

FEW = IntervalSettings(flush_interval=0, checkpoint_entries=2, timer_part=2, timers_kept=2, timer_lead=1)
"""Memory keeps two timers."""


class Reminder(mw.Computation[int]):
    """Sets a timer for each record, and replaces the one of the tag "again"."""

    def process_record(self, ctx: mw.Context[None], record: mw.Record[int]) -> None:
        ctx.set_timer(mw.Timestamp(record.value), tag=f"at {record.value}")
        ctx.set_timer(mw.Timestamp(record.value + 1), tag="again")

    def process_timer(self, ctx: mw.Context[None], timer: mw.Timer) -> None:
        pass


def test_timers_in_the_store_are_shown() -> None:
    topology = mw.Topology("reminders")
    topology.source("numbers", int)
    topology.add(Reminder, inputs={"numbers": mw.key(lambda _: "one")})
    harness = TopologyHarness(topology, settings=FEW, any_timestamp=True)
    times = range(1_000, 21_000, 1_000)
    for at in times:
        harness.send("numbers", at, mw.Timestamp(1))
    (core,) = cluster_of(harness).cores_of("reminder")
    assert core.state.timers.spilled.count >= 10

    shown = harness.timers("reminder", "one")

    expected = {(f"at {at}", mw.TimeDomain.EVENT_TIME): at for at in times}
    assert shown == expected | {("again", mw.TimeDomain.EVENT_TIME): times[-1] + 1}
