"""Spilled timers against a naive table that has all timers (G5, G6, G13; 4.6).

Histories come from seeds: timers are set, set again and cancelled. Event time and the clock advance, and owners crash.
Memory keeps two timers of a domain. The store is slow: it answers late and in any order, and a crash loses some of its
requests. Each key's state is a log of its steps, in the order of commits. A replay of the log on the naive table must
be possible. ``python -m tests.worker.interval.test_spilled_timers FIRST COUNT`` runs more.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

import millwheel as mw
from millwheel.model.incarnation import IncarnationId
from millwheel.model.time import Duration, TimeDomain, Timestamp
from millwheel.rpc.v1.inspection_pb2 import GetWorkerLoadResponse, InspectKeyRequest, ListKeysRequest, ListTimersRequest
from millwheel.testing import cluster
from millwheel.testing.cores import CoreDriver
from millwheel.testing.harness import TopologyHarness
from millwheel.testing.store_effects import result_of
from millwheel.worker.interval import IntervalCore, IntervalSettings
from millwheel.worker.messages import FenceJournal, IntervalEffect, StoreEffect
from millwheel.worker.process.inspection import InspectionService
from millwheel.worker.process.owned_states import OwnedStates
from tests.testing.inside import cluster_of

KEYS = ["a", "b", "m", "z"]
TAGS = ["r", "s", "t"]
SEEDS = 60
SMALL = IntervalSettings(
    batch_records=3,
    batch_bytes=2_000,
    queue_records=12,
    outbox_records=10,
    cache_bytes=1_000,
    flush_interval=7,
    checkpoint_entries=4,
    entry_bytes=300,
    timer_part=2,
    timers_kept=2,
    timer_lead=3,
)


@dataclass
class Order:
    """An injected record, which sets a timer, or cancels it (``at`` None). ``hold`` None: without a stated hold."""

    key: str
    tag: str
    wall: bool
    at: int | None = None
    hold: int | None = None


@dataclass
class Done:
    """A step in the log: a record's order or a fired timer, and the time of the domain that the hook saw."""

    what: str
    tag: str
    wall: bool
    at: int
    shown: int
    unsealed: list[tuple[bool, str]] = field(default_factory=list)
    """The changes of the current commit. They take effect when the commit is sealed."""


@dataclass
class Log:
    """A key's state."""

    done: list[Done] = field(default_factory=list)


class Clockwork(mw.Computation[Order, Log]):
    """Follows the order of each record, and logs it."""

    def process_record(self, ctx: mw.Context[Log], record: mw.Record[Order]) -> None:
        order = record.value
        shown = int(ctx.now if order.wall else ctx.watermark)
        unsealed = [(bool(domain), tag) for domain, tag in ctx._timers or ()]  # noqa: SLF001  # changes of this commit
        if order.at is None:
            ctx.cancel_timer(order.tag, domain=TimeDomain(order.wall))
            ctx.state.done.append(Done("cancel", order.tag, order.wall, 0, shown, unsealed))
            return
        hold = None if order.hold is None else Timestamp(min(order.hold, order.at) if not order.wall else order.hold)
        if hold is not None and hold < record.timestamp:
            hold = record.timestamp
        ctx.set_timer(Timestamp(order.at), order.tag, domain=TimeDomain(order.wall), hold=hold)
        ctx.state.done.append(Done("set", order.tag, order.wall, order.at, shown, unsealed))

    def process_timer(self, ctx: mw.Context[Log], timer: mw.Timer) -> None:
        shown = int(ctx.now if timer.domain else ctx.watermark)
        ctx.state.done.append(Done("fire", timer.tag, bool(timer.domain), int(timer.timestamp), shown))
        ctx.produce("fired", (ctx.key, timer.tag, bool(timer.domain), int(timer.timestamp)))


def clockwork() -> mw.Topology:
    made = mw.Topology("clockwork")
    made.source("events", Order)
    made.add(
        Clockwork(), name="mapper", inputs={"events": mw.key("key")}, outputs={"fired": tuple[str, str, bool, int]}
    )
    return made


class SlowStore(CoreDriver):
    """A driver with a slow store, which performs effects late and in any order. At once if ``chance`` is None."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.chance: Random | None = None
        self.reached: Counter[str] = Counter()
        self.delayed: list[tuple[str, IntervalEffect]] = []

    def perform(self, journal: str, effect: IntervalEffect) -> None:
        """Keep effects on the store waiting. A journal opens at once, because no other effect comes until then."""
        if self.chance is not None and isinstance(effect, StoreEffect) and not isinstance(effect, FenceJournal):
            self.delayed.append((journal, effect))
        else:
            super().perform(journal, effect)

    def run(self) -> None:
        """Handle events, while the store performs some waiting effects, or all of them if it is not slow."""
        super().run()
        while self.delayed and (self.chance is None or self.chance.random() < 0.8):
            at = 0 if self.chance is None else self.chance.randrange(len(self.delayed))
            super().perform(*self.delayed.pop(at))
            super().run()
            for core in self.cores.values():
                core.check_invariants()
                spilled = core.state.timers.spilled
                self.reached["spilled"] += bool(spilled.parts)
                self.reached["both domains"] += all(spilled.first[domain] is not None for domain in TimeDomain)
                self.reached["void"] += spilled.void_count > 0
                self.reached["holds"] += any(True for _ in spilled.holding())
                self.reached["behind"] += core.state.timers.behind

    def clear(self) -> None:
        """Lose the memory. Some writes in flight still reach the store."""
        if self.chance is not None and self.delayed:
            self.reached["cut short"] += 1
            for journal, effect in self.delayed[: self.chance.randrange(len(self.delayed) + 1)]:
                super().perform(journal, effect)
        self.delayed.clear()
        super().clear()


class Timed:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.harness = TopologyHarness(
            clockwork(), split_at=["k"], now=Timestamp(1_000), settings=SMALL, any_timestamp=True
        )
        driver = cluster_of(self.harness).driver
        assert isinstance(driver, SlowStore)
        self.driver = driver
        self.now = 0
        self.orders = 0

    def run(self) -> Counter[str]:
        """Do random steps, and then finish all work. Returns the counts of the cases that came up."""
        steps = [self.inject, self.inject, self.pass_time, self.harness.crash, self.rest]
        for _ in range(self.chance.randint(20, 100)):
            self.driver.chance = self.chance
            self.chance.choice(steps)()
        self.rest()
        self.harness.finish()
        self.harness.advance_clock(Duration(20_000))  # a delivery that found the interval full comes again by then
        fired: Counter[Any] = Counter()
        total = 0
        for key in KEYS:
            log = self.log(key)
            rang, left = check_log(log)
            assert left == {}, f"every timer of {key} has fired"
            fired.update((key, *one) for one in rang)
            total += sum(done.what != "fire" for done in log.done)
        assert total == self.orders
        assert Counter(tuple(value) for value in self.harness.values("fired")) == fired
        assert not any(core.state.timers.spilled.parts for core in self.driver.cores.values())
        return self.driver.reached

    def log(self, key: str) -> Log:
        """The finished work of a key."""
        return self.harness.state("mapper", key) or Log()

    def inject(self) -> None:
        made = []
        chance = self.chance
        for _ in range(chance.randint(1, 5)):
            order = Order(chance.choice(KEYS), chance.choice(TAGS), chance.random() < 0.3)
            if chance.random() < 0.75:
                ahead = chance.choice([5, 30, 200])
                order.at = (self.driver.now if order.wall else self.now) + chance.randint(1, ahead)
                order.hold = self.now + chance.randint(0, 50) if chance.random() < 0.3 else None
            made.append((order, Timestamp(self.now + chance.randint(0, 4))))
        self.orders += len(made)
        self.harness.send_all("events", made)

    def pass_time(self) -> None:
        """Advance the injector's watermark or the clock."""
        if self.chance.random() < 0.5:
            self.now += self.chance.choice([2, 10, 25, 60])
            self.harness.advance(Timestamp(self.now))
        else:
            self.harness.advance_clock(Duration(self.chance.randint(1, 60)))

    def rest(self) -> None:
        """Finish all waiting work. Inspection shows a key's timers in memory and in the store."""
        self.driver.chance = None
        self.harness.advance_clock(Duration(1))
        for journal, core in self.driver.cores.items():
            owned = OwnedStates(
                lambda incarnation, key, journal=journal: journal,  # type: ignore[misc]
                lambda journal, core=core: core,  # type: ignore[misc]
                lambda journal: "",
                self.driver.store,
            )
            service = InspectionService(owned, self.driver.store, GetWorkerLoadResponse)
            check_listings(service, journal, core)
            for key in KEYS:
                if key.encode() in core.keys:
                    request = InspectKeyRequest(incarnation=IncarnationId("mapper"), key=key.encode())
                    reported = result_of(service.InspectKey(request, None))
                    shown = {(one.wall_time, one.tag): one.timestamp_us for one in reported.timers}
                    assert shown == check_log(self.log(key))[1], f"{journal}, key {key}"


def check_listings(service: InspectionService, journal: str, core: IntervalCore) -> None:
    """Pages of two list all timers in order, and the keys with a state or with timers in memory."""
    timers, token = [], ""
    while True:
        page = result_of(service.ListTimers(ListTimersRequest(journal=journal, page_size=2, page_token=token), None))
        timers += [(one.timer.timestamp_us, one.timer.wall_time, one.key, one.timer.tag) for one in page.timers]
        if not (token := page.next_page_token):
            break
    assert timers == sorted(timers)
    listed: dict[bytes, tuple[int, int]] = {}
    while True:
        keys = result_of(service.ListKeys(ListKeysRequest(journal=journal, page_size=2, page_token=token), None))
        assert [one.key for one in keys.keys] == sorted(one.key for one in keys.keys)
        listed |= {one.key: (one.state_bytes, one.timers) for one in keys.keys}
        if not (token := keys.next_page_token):
            break
    assert keys.spilled_timers == core.state.timers.spilled.count
    shown, held = [], {}
    for key in (name.encode() for name in KEYS if name.encode() in core.keys):
        request = InspectKeyRequest(incarnation=IncarnationId("mapper"), key=key)
        one = result_of(service.InspectKey(request, None))
        of_key = [(timer.timestamp_us, timer.wall_time, key, timer.tag) for timer in one.timers]
        alone = result_of(service.ListTimers(ListTimersRequest(journal=journal, key=key), None))
        assert [(each.timer.timestamp_us, each.timer.tag) for each in alone.timers] == sorted(
            (at, tag) for at, _, _, tag in of_key
        )
        shown += of_key
        in_memory = sum(len(table.of_key(key)) for table in core.state.timers.tables.values())
        if one.state or in_memory:
            held[key] = len(one.state), in_memory
    assert timers == sorted(shown)
    assert listed == held


def check_log(log: Log) -> tuple[list[tuple[str, bool, int]], dict[tuple[bool, str], int]]:
    """Each timer fires once, as it was last set. None is early. A domain's timers fire in order, before later records.

    Returns those that have fired, and those that have not.
    """
    table: dict[tuple[bool, str], int] = {}
    fired = []
    for done in log.done:
        name = done.wall, done.tag
        domain = [at for (wall, _), at in table.items() if wall is done.wall]
        if done.what == "fire":
            assert table.pop(name, None) == done.at, f"{done} fires as it was last set"
            assert done.at == min(domain), f"{done} is the earliest of {domain}"
            assert done.shown >= done.at, f"{done} is not early"
            fired.append((done.tag, done.wall, done.at))
            continue
        if not done.wall:
            due = [one for one, at in table.items() if not one[0] and at <= done.shown]
            assert set(due) <= {tuple(one) for one in done.unsealed}, f"{due} are due and fire before {done}"
        if done.what == "set":
            table[name] = done.at
        else:
            table.pop(name, None)
    return fired, table


@pytest.mark.guarantee("G6", section="4.6")
@pytest.mark.parametrize("part", range(4))
def test_timers_in_the_store_fire_once_in_order_and_never_early(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "CoreDriver", SlowStore)
    first = 2_000 + part * SEEDS // 4
    assert simulate(range(first, first + SEEDS // 4)).keys() >= {"spilled", "void", "holds", "behind", "cut short"}


def simulate(seeds: range) -> Counter[str]:
    """Run the histories of these seeds. Returns the counts of their cases. The first failing seed is named."""
    reached: Counter[str] = Counter()
    for seed in seeds:
        try:
            reached += Timed(seed).run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    return reached


if __name__ == "__main__":
    setattr(cluster, "CoreDriver", SlowStore)  # noqa: B010  # its type is a class's
    first, count = int(sys.argv[1]), int(sys.argv[2])
    sys.stdout.write(f"{dict(simulate(range(first, first + count)))}\n")
