"""A simulated world: the cluster's processes, and everything outside of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

from millwheel.coordination.contract import KeyChange
from millwheel.worker.process.worker import Worker
from simulation.cassandra import SimulatedCassandra
from simulation.coordinator import SimulatedCoordinator
from simulation.forms import Form
from simulation.history import History
from simulation.loop import SimulatedLoop
from simulation.machine import SimulatedMachine
from simulation.network import Network
from simulation.plan import Plan
from simulation.process import Clock, Process
from simulation.store import SimulatedStore, StoreWatch
from simulation.taps import Taps

__all__ = ["Main", "World"]

Main = Callable[["World", Process], Awaitable[None]]
"""The main function of a process. The process ends when it returns."""


def _store(plan: Plan, network: Network, watch: StoreWatch) -> SimulatedStore | SimulatedCassandra:
    chance = Random(f"store {plan.seed}")
    if plan.store == "cassandra":
        return SimulatedCassandra(network, chance, watch, plan.store_ways)
    if plan.store == "embedded":
        return SimulatedMachine(network, chance, watch, plan.store_ways)
    return SimulatedStore(network, chance, watch)


class World:
    """The state of one run. All of its randomness comes from the plan's seed."""

    def __init__(self, plan: Plan, loop: SimulatedLoop, directory: Path) -> None:
        self.plan = plan
        self.loop = loop
        self.directory = directory
        self.chance = Random(f"world {plan.seed}")
        self.file_chance = Random(f"files {plan.seed}")
        self.history = History(loop)
        self.network = Network(loop, Random(f"network {plan.seed}"))
        self.violations: list[str] = []
        self.watch = StoreWatch()
        self.changes: list[Callable[[tuple[KeyChange, ...]], None]] = []
        self.broadcasts: list[Callable[[Mapping[str, int]], None]] = []
        """Called with the watermarks that a worker receives, by sending computation."""
        self.taps = Taps()
        """Further hooks for checkers, at the cores."""
        self.store = _store(plan, self.network, self.watch)
        self.coordinator = SimulatedCoordinator(
            self.network, Random(f"coordinator {plan.seed}"), self._changed, plan.revisions_kept
        )
        self.coordinator.lease_clock = plan.lease_clock
        self.coordinator.misused = self.violated
        self.processes: dict[str, Process] = {}
        """The current incarnation of each process, by name."""
        self.forms: dict[str, Form] = {}
        """Which form of the changing part a package contains, by the package's digest."""
        self.workers: dict[str, Worker] = {}
        """The worker object of each worker process's current incarnation."""
        self.sending: set[Process] = set()
        """The incarnations of file injectors that have sent records."""
        self.appended_by: dict[str, int] = {}
        """The sequencer of each journal's last append."""
        self.stops: dict[str, asyncio.Event] = {}
        """The event that stops each daemon, as SIGTERM does."""
        self._mains: dict[str, Main] = {}

    def violated(self, what: str) -> None:
        """Record that a guarantee does not hold."""
        self.violations.append(what)
        self.history.note(f"VIOLATION {what}")

    def _changed(self, changes: tuple[KeyChange, ...]) -> None:
        for hear in self.changes:
            hear(changes)

    # Processes.

    def start(self, name: str, main: Main | None = None, clock: Clock | None = None) -> Process:
        """Start a process, or restart it with its former main function and clock."""
        before = self.processes.get(name)
        life = 1 if before is None else before.life + 1
        if before is not None:
            self.network.died(before)  # a machine that restarts has lost its old connections
        kept = clock or (before.clock if before is not None else Clock())
        process = self.processes[name] = Process(self.loop, name, life, kept)
        main = self._mains[name] = main or self._mains[name]
        self.history.note("starts", process)
        process.spawn(self._live(main, process), name)
        return process

    async def _live(self, main: Main, process: Process) -> None:
        try:
            await main(self, process)
        except Exception as error:
            self.violated(f"{process} ended by {type(error).__name__}: {error}")
        self.history.note("has ended", process)

    def kill(self, name: str) -> None:
        """Kill a process, as SIGKILL does."""
        process = self.processes[name]
        if process.alive:
            self.history.note("is killed", process)
            self.loop.kill(process)
            self.network.died(process)

    def vanish(self, name: str) -> None:
        """Lose a process's machine: no connection is reset, and no connection attempt is refused or answered."""
        process = self.processes[name]
        self.history.note("vanishes", process)
        for other in (*self.processes, "store", "coordinator"):
            if other != name:
                self.network.cut(name, other)
                self.network.cut(other, name)
        self.loop.kill(process)

    def pause(self, name: str) -> None:
        """Pause a process, as SIGSTOP does."""
        process = self.processes[name]
        self.history.note("is paused", process)
        self.loop.pause(process)
        self.network.paused(process)

    def suspend(self, name: str) -> None:
        """Suspend a process's machine. Its steady clock stands still until the machine resumes."""
        process = self.processes[name]
        self.history.note("is suspended", process)
        self.loop.suspend(process)
        self.network.paused(process)

    def resume(self, name: str) -> None:
        """Resume a process, as SIGCONT does, or resume its machine."""
        process = self.processes[name]
        if process.paused:
            self.history.note("goes on", process)
            self.loop.resume(process)

    def later(self, delay: float, call: Callable[..., Any], *arguments: Any) -> None:
        """Schedule a call that belongs to the world and not to a process."""
        self.loop.call_later(delay, call, *arguments, context=self.network.context)
