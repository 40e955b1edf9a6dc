"""Timers that go to the store and come back, against a table that has them all in one place (G5, G6, G12, G13; 4.6).

Histories from seeds: timers are set, set again and cancelled, event time and the clock advance, owners die or
become zombies, intervals are split and merged, while memory keeps two timers of a domain. The keys' states are logs of
what happened in the order in which it was committed; replayed on a naive table they must make sense.
``python -m tests.interval.test_spilled_timers FIRST COUNT`` runs more.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

import millwheel as mw
from millwheel.model.time import TimeDomain, Timestamp
from millwheel.rpc.v1.inspection_pb2 import GetWorkerLoadResponse, InspectKeyRequest
from millwheel.testing.store_effects import result_of
from millwheel.worker.interval import IntervalCore
from millwheel.worker.owner import OwnerPhase
from millwheel.worker.shell.inspection import InspectionService
from tests.interval.checks import all_timers, decoded
from tests.interval.histories import KEYS, History, simulate
from tests.interval.world import Owner, World

TAGS = ["r", "s", "t"]
SEEDS = 60


@dataclass
class Order:
    """An injected record: set a timer, or cancel it (``at`` None). ``hold`` None: none is stated."""

    key: str
    tag: str
    wall: bool
    at: int | None = None
    hold: int | None = None


@dataclass
class Done:
    """What a hook did, or that it was a timer's; and the time of its domain as it was shown."""

    what: str
    tag: str
    wall: bool
    at: int
    shown: int
    unsealed: list[tuple[bool, str]] = field(default_factory=list)
    """What the commit that is being made changes: it takes effect when that is sealed."""


@dataclass
class Log:
    """A key's state."""

    done: list[Done] = field(default_factory=list)


class Clockwork(mw.Computation[Order, Log]):
    """Does as a record states, and writes it down."""

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


class FarWorld(World):
    """Notes what it has seen of far timers."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.reached: Counter[str] = Counter()
        super().__init__(*arguments, **options)

    def handle(self, owner: Owner, event: Any) -> None:
        super().handle(owner, event)
        self.look(owner.core)

    def look(self, core: IntervalCore) -> None:
        spilled = core.state.timers.spilled
        self.reached["spilled"] += bool(spilled)
        self.reached["both domains"] += all(spilled.first(domain) is not None for domain in TimeDomain)
        self.reached["void"] += spilled.void_count > 0
        self.reached["holds"] += any(True for _ in spilled.holding())
        self.reached["behind"] += core.state.timers.behind


class Timed(History):
    """Timers are set, set again and cancelled."""

    world: FarWorld

    def __init__(self, seed: int) -> None:
        super().__init__(seed, lambda chance: FarWorld(clockwork(), {"mapper": ["k"]}))
        self.orders = 0
        self.steps += [self.inject, self.shift if seed % 2 else self.perform_in_order]

    def inject(self) -> None:
        made = []
        chance = self.chance
        for _ in range(chance.randint(1, 5)):
            now = max(0, self.world.injector.declared)
            order = Order(chance.choice(KEYS), chance.choice(TAGS), chance.random() < 0.3)
            if chance.random() < 0.75:
                ahead = chance.choice([5, 30, 200])
                order.at = (self.world.now if order.wall else now) + chance.randint(1, ahead)
                order.hold = now + chance.randint(0, 50) if chance.random() < 0.3 else None
            made.append((order, now + chance.randint(0, 4)))
        self.orders += len(made)
        self.world.injector.send(made)

    def look(self) -> None:
        super().look()
        check_inspection(self.world)

    def check(self) -> None:
        fired: Counter[Any] = Counter()
        total = 0
        for key, log in decoded(self.world, "mapper").items():
            fired.update((key, *one) for one in check_log(log))
            total += sum(done.what != "fire" for done in log.done)
        assert total == self.orders
        assert Counter(tuple(value) for stream, value, _ in self.world.out if stream == "fired") == fired
        assert not any(owner.core.state.timers.spilled for owner in self.world.current.values())
        self.reached += self.world.reached


def check_inspection(world: World) -> None:
    """A key's timers are shown wherever they stand."""
    for journal, owner in world.current.items():
        if owner.core.phase is not OwnerPhase.SERVING:
            continue
        core = owner.core
        service = InspectionService(
            lambda computation, key, journal=journal: journal,  # type: ignore[misc]
            lambda journal, core=core: core,  # type: ignore[misc]
            lambda journal: "",
            world.store,
            GetWorkerLoadResponse,
        )
        for key in KEYS:
            if key.encode() in core.keys:
                reported = result_of(
                    service.InspectKey(InspectKeyRequest(computation="mapper", key=key.encode()), None)
                )
                shown = {(one.wall_time, one.tag, one.timestamp_us) for one in reported.timers}
                expected = {
                    (bool(domain), tag, setting.at)
                    for domain in TimeDomain
                    for one, tag, setting in all_timers(world, core.state, domain)
                    if one == key.encode()
                }
                assert shown == expected, f"{journal}, key {key}"


def check_log(log: Log) -> list[tuple[str, bool, int]]:
    """Each timer fires once, as it was last set, none early, each domain's in order, before the records that follow."""
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
    assert table == {}, "every timer has fired"
    return fired


@pytest.mark.guarantee("G6", section="4.6")
@pytest.mark.parametrize("part", range(4))
def test_timers_in_the_store_fire_once_in_order_and_never_early(part: int) -> None:
    first = 2_000 + part * SEEDS // 4
    assert simulate(Timed, range(first, first + SEEDS // 4)).keys() >= {"spilled", "void", "holds", "behind"}


if __name__ == "__main__":
    first, count = int(sys.argv[1]), int(sys.argv[2])
    sys.stdout.write(f"{dict(simulate(Timed, range(first, first + count)))}\n")
