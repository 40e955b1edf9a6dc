"""The faults of a run: drawn from the seed, spread over the time of its input, and ended before the run ends."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from millwheel.model.catalog_keys import LEADERSHIP, SHARD_LEADERSHIPS, WORKERS
from simulation.cassandra import SimulatedCassandra
from simulation.cluster import AUTHORITIES, MASTERS
from simulation.cluster import WORKERS as WORKER_NAMES
from simulation.machine import SimulatedMachine
from simulation.world import World

__all__ = ["Faults"]

_HOSTS: Final = (*MASTERS, *AUTHORITIES, *WORKER_NAMES)


class Faults:
    """Plans faults and schedules them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = Random(f"faults {world.plan.seed}")
        self.ends_at = 0.0
        """The virtual time at which all faults are over."""
        self.turned = 0.0
        """The total seconds by which wall clocks were changed."""
        self._kinds: list[Callable[[], None]] = [
            self._crash,
            self._crash,
            self._pause,
            self._pause,
            self._terminate,
            self._vanish,
            self._reset,
            self._partition,
            self._blind,
            self._slow_host,
            self._slow_store,
            self._lossy_store,
            self._store_away,
            self._lossy_coordinator,
            self._coordinator_away,
            self._leases,
            self._watches,
            self._clock,
        ]

    def arrange(self) -> None:
        """Schedule faults, and their end some time after the last record was injected."""
        world, chance = self._world, self._chance
        # Some runs have many faults of few kinds, because combinations of faults find unexpected errors.
        kinds = chance.sample(self._kinds, chance.randint(1, len(self._kinds)))
        for _ in range(chance.choice((0, 2, 4, 8, 16))):
            world.later(chance.uniform(0.0, world.plan.span * 1.2), chance.choice(kinds))
        self.ends_at = world.plan.span * 1.2 + chance.uniform(0.5, 15.0)
        world.later(self.ends_at, self.end)
        for name, count, fault in (
            ("zombies", world.plan.zombies, self._zombie),
            ("one way", world.plan.one_way, self._one_way),
            ("islands", world.plan.islands, self._island),
            ("suspensions", world.plan.suspensions, self._suspension),
            ("power cuts", world.plan.power_cuts, self._power_cut),
            ("abandoned transactions", 2 * isinstance(world.store, SimulatedCassandra), self._abandon),
            ("etcd suspended", int(bool(world.plan.etcd_suspended)), self._etcd_suspended),
        ):
            apart = Random(f"{name} {world.plan.seed}")
            for _ in range(count):
                world.later(apart.uniform(0.0, world.plan.span), fault, apart)

    def _zombie(self, chance: Random) -> None:
        """A worker that owns intervals sleeps past its lease; its requests to the store arrive as it wakes."""
        world, store = self._world, self._world.store.remote
        name = self._owner(chance)
        if not name or name in store.held:
            return
        world.history.note(f"what {name} asks of the store is held up on its way")
        store.hold(name)
        asleep = chance.uniform(0.0, 0.3)
        world.later(asleep, self._sleeps, name)
        awake = asleep + chance.uniform(5.0, 9.0)
        world.later(awake, world.resume, name)
        world.later(awake + chance.choice((-0.5, 0.0, 0.2)), self._arrives, name)

    def _power_cut(self, chance: Random) -> None:
        """The machine of the embedded store and of all roles loses power in the middle of a group commit."""
        store = self._world.store
        if isinstance(store, SimulatedMachine):
            store.lose_power = lambda: self._dark(chance)
            store.cut_power()

    def _abandon(self, chance: Random) -> None:
        """A process is killed while Cassandra has its transaction half done. Another process will come upon it."""
        store = self._world.store
        if isinstance(store, SimulatedCassandra):
            store.proposer_dies = lambda who: self._dies(who, chance)

    def _dies(self, who: str, chance: Random) -> None:
        """``who``: a process and its life, such as w1.2."""
        world, name = self._world, who.partition(".")[0]
        if name in _HOSTS and world.processes[name].alive:
            world.kill(name)
            world.later(chance.choice((0.1, 6.0)) * chance.uniform(0.5, 1.5), self._restart, name)

    def _dark(self, chance: Random) -> None:
        world = self._world
        world.history.note("the power is cut")
        for name in _HOSTS:
            if world.processes[name].alive:
                world.kill(name)
        world.later(chance.uniform(0.2, 4.0), self._light)

    def _light(self) -> None:
        """The machine starts again. All leases end with the power cut."""
        world = self._world
        assert isinstance(world.store, SimulatedMachine)
        world.history.note("the power is back")
        world.store.return_power()
        world.coordinator.expire("")
        for name in _HOSTS:
            self._restart(name)

    def _suspension(self, chance: Random) -> None:
        """A machine is suspended for longer than its lease; its process continues as if no time had passed."""
        world, store = self._world, self._world.store.remote
        name = self._owner(chance) if chance.random() < 0.6 else chance.choice(_HOSTS)
        if not name or not world.processes[name].alive or world.processes[name].paused:
            return
        late = name in WORKER_NAMES and name not in store.held and chance.random() < 0.5
        if late:
            world.history.note(f"what {name} asks of the store is held up on its way")
            store.hold(name)
        asleep = chance.uniform(0.0, 0.3)
        world.later(asleep, self._suspends, name)
        awake = asleep + chance.uniform(4.0, 9.0)
        world.later(awake, world.resume, name)
        if late:
            world.later(awake + chance.choice((-0.5, 0.0, 0.2)), self._arrives, name)

    def _suspends(self, name: str) -> None:
        process = self._world.processes[name]
        if process.alive and not process.paused:
            self._world.suspend(name)

    def _etcd_suspended(self, chance: Random) -> None:
        """The coordinator's machines are suspended: afterwards either all leases have ended, or none."""
        world = self._world
        slept = chance.choice((2.0, 6.0)) * chance.uniform(0.8, 1.2)
        counts = world.plan.etcd_suspended == "counts"
        world.history.note(f"the coordinator is suspended for {slept:.1f} s, and its clock {world.plan.etcd_suspended}")
        world.coordinator.suspend()
        world.later(slept, world.coordinator.resume, slept, counts)

    def _owner(self, chance: Random) -> str:
        """A running worker that owns intervals; empty if there is none."""
        world = self._world
        names = [name for name in WORKER_NAMES if name in world.workers and world.workers[name].hosts.hosted]
        fit = [name for name in names if world.processes[name].alive and not world.processes[name].paused]
        return chance.choice(fit) if fit else ""

    def _sleeps(self, name: str) -> None:
        process = self._world.processes[name]
        if process.alive and not process.paused:
            self._world.pause(name)

    def _arrives(self, name: str) -> None:
        if name in self._world.store.remote.held:
            self._world.history.note(f"what {name} has asked of the store arrives")
            self._world.store.remote.release(name)

    def end(self) -> None:
        """End all faults: from now on everything works."""
        world = self._world
        world.history.note("all faults end")
        self._heal()
        world.network.slow.clear()
        world.store.calm()
        for name in list(world.store.remote.held):
            self._arrives(name)
        for remote in (world.store.remote, world.coordinator.remote):
            remote.weather.away = False
            remote.weather.lost = remote.weather.slow = 0.0
        for name, process in list(world.processes.items()):
            world.resume(name)
            if not process.alive:
                world.start(name)

    # Processes.

    def _victim(self) -> str:
        clients = [name for name, one in self._world.processes.items() if name not in _HOSTS and name != "operator"]
        return self._chance.choice((*_HOSTS, *WORKER_NAMES, *clients))

    def _crash(self) -> None:
        world, chance, name = self._world, self._chance, self._victim()
        if not world.processes[name].alive:
            return
        world.kill(name)
        if chance.random() < 0.8:
            world.later(chance.choice((0.1, 1.0, 6.0)) * chance.uniform(0.5, 1.5), self._restart, name)

    def _restart(self, name: str) -> None:
        if not self._world.processes[name].alive:
            self._world.start(name)

    def _pause(self) -> None:
        """Pause a process, often past its lease: when it continues, it is a zombie (figure 12)."""
        world, chance, name = self._world, self._chance, self._victim()
        process = world.processes[name]
        if process.alive and not process.paused:
            world.pause(name)
            world.later(chance.choice((0.2, 3.0, 8.0)) * chance.uniform(0.5, 1.5), world.resume, name)

    def _terminate(self) -> None:
        """Stop a process as SIGTERM does: it hands over its intervals."""
        world, chance, name = self._world, self._chance, self._victim()
        process, stop = world.processes[name], world.stops.get(name)
        if process.alive and not process.paused and stop is not None:
            process.enter(stop.set)
            world.later(chance.choice((0.1, 3.0)) * chance.uniform(0.5, 1.5), self._again, name)

    def _again(self, name: str) -> None:
        """Kill the process if it has not ended by now, and start it again."""
        self._world.kill(name)
        self._restart(name)

    def _vanish(self) -> None:
        world, chance, name = self._world, self._chance, self._victim()
        if world.processes[name].alive:
            world.vanish(name)
            world.later(chance.choice((1.0, 8.0)) * chance.uniform(0.5, 1.5), self._comes_back, name)

    def _comes_back(self, name: str) -> None:
        self._heal()
        self._restart(name)

    # The network.

    def _reset(self) -> None:
        if self._world.network.reset():
            self._world.history.note("a connection is reset")

    def _partition(self) -> None:
        world, chance = self._world, self._chance
        one = self._victim()
        other = chance.choice([name for name in (*world.processes, "store", "coordinator") if name != one])
        world.history.note(f"{one} cannot reach {other}")
        world.network.cut(one, other)
        if chance.random() < 0.6:
            world.history.note(f"{other} cannot reach {one}")
            world.network.cut(other, one)
        world.later(chance.choice((0.5, 5.0, 40.0)) * chance.uniform(0.5, 1.5), self._heal)

    def _one_way(self, chance: Random) -> None:
        """Messages of one host do not reach another one, while the reverse direction works.

        The hosts are drawn from the cluster's processes, the store and the coordinator, because these exchange
        messages.
        """
        name = chance.choice(_HOSTS)
        others = [other for other in (*_HOSTS, "store", "store", "coordinator", "coordinator") if other != name]
        pair = [name, chance.choice(others)]
        chance.shuffle(pair)
        self._world.history.note(f"{pair[0]} cannot reach {pair[1]}, only the other way")
        self._world.network.cut(*pair)
        self._world.later(chance.choice((0.5, 5.0, 12.0)) * chance.uniform(0.5, 1.5), self._heal)

    def _island(self, chance: Random) -> None:
        """A worker that owns intervals loses the store, and then all other hosts, for longer than its lease.

        Its store requests arrive when others own its intervals.
        """
        name = self._owner(chance)
        if name:
            self._world.history.note(f"{name} cannot reach the store")
            self._world.network.cut(name, "store")
            alone = chance.choice((0.0, 0.1, 0.5))
            self._world.later(alone, self._alone, name)
            self._world.later(alone + chance.uniform(5.0, 9.0), self._heal)

    def _alone(self, name: str) -> None:
        world = self._world
        world.history.note(f"{name} and all others cannot reach each other")
        for other in (*world.processes, "store", "coordinator"):
            if other != name:
                world.network.cut(name, other)
                world.network.cut(other, name)

    def _blind(self) -> None:
        """A worker gets no notice of its lease's end or its successors, and continues to work: figure 12's zombie."""
        world, chance = self._world, self._chance
        name = chance.choice(WORKER_NAMES)
        world.history.note(f"{name} and the coordinator cannot reach each other, nor can it and the masters")
        for other in ("coordinator", *MASTERS):
            world.network.cut(name, other)
            world.network.cut(other, name)
        world.later(chance.uniform(6.0, 12.0), self._heal)

    def _heal(self) -> None:
        world = self._world
        world.history.note("the partitions heal")
        for remote in (world.store.remote, world.coordinator.remote):
            if remote.cut_off:
                world.history.note(f"of what was asked of the {remote.name} meanwhile, {len(remote.cut_off)} arrive")
        world.network.heal()

    def _slow_host(self) -> None:
        name, delay = self._victim(), self._chance.choice((0.005, 0.1))
        self._world.history.note(f"{name} is slow, by {delay} s")
        self._world.network.slow[name] = delay
        self._world.later(self._chance.uniform(0.5, 5.0), self._world.network.slow.pop, name, None)

    # The store, the coordinator.

    def _spell(self, service: str, attribute: str, value: float | bool, seconds: float) -> None:
        weather = (self._world.store if service == "store" else self._world.coordinator).remote.weather
        self._world.history.note(f"the {service}: {attribute} {value}")
        setattr(weather, attribute, value)
        self._world.later(seconds, self._fair, service, attribute, type(value)())

    def _fair(self, service: str, attribute: str, value: float | bool) -> None:
        weather = (self._world.store if service == "store" else self._world.coordinator).remote.weather
        self._world.history.note(f"the {service}: {attribute} no more")
        setattr(weather, attribute, value)

    def _slow_store(self) -> None:
        self._spell("store", "slow", self._chance.choice((0.02, 0.5)), self._chance.uniform(0.5, 4.0))

    def _lossy_store(self) -> None:
        self._spell("store", "lost", self._chance.choice((0.05, 0.3)), self._chance.uniform(0.5, 6.0))

    def _store_away(self) -> None:
        self._spell("store", "away", True, self._chance.choice((0.3, 5.0)) * self._chance.uniform(0.5, 1.5))

    def _lossy_coordinator(self) -> None:
        self._spell("coordinator", "lost", self._chance.choice((0.05, 0.3)), self._chance.uniform(0.5, 6.0))

    def _coordinator_away(self) -> None:
        self._spell("coordinator", "away", True, self._chance.choice((0.3, 5.0)) * self._chance.uniform(0.5, 1.5))

    def _leases(self) -> None:
        prefix = self._chance.choice((WORKERS, WORKERS, LEADERSHIP, SHARD_LEADERSHIPS))
        if self._world.coordinator.expire(prefix):
            self._world.history.note(f"the leases of {prefix} end")

    def _watches(self) -> None:
        self._world.history.note("the coordinator breaks its watches off")
        self._world.coordinator.break_watches()

    # Clocks.

    def _clock(self) -> None:
        name = self._victim()
        # A processing-time timer that was set by a clock one hour ahead fires in an hour. No run waits that long.
        step = self._chance.choice((-30.0, -0.5, 0.5, 30.0, 10.0 if self._world.plan.clocked else 3600.0))
        self._world.history.note(f"the clock of {name} jumps by {step} s")
        self._world.processes[name].clock.offset += step
        self.turned += abs(step)
