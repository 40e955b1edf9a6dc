"""The hostile world, with its intervals being split and merged, and children letting go of their parents (G11)."""

from __future__ import annotations

import random
from typing import Any

from millwheel.model.keys import KeyInterval
from millwheel.worker.messages import CatalogChanged, Parent, PrepareRelease
from tests.interval.world import Owner, Task, World, now_of

__all__ = ["Released", "SeededHistory", "ShiftingWorld"]


class Released:
    """Word on its way to the master: a child has let go."""

    def __init__(self, journal: str) -> None:
        self.journal = journal


class ShiftingWorld(World):
    """The test is the master, and keeps its rules: a child that has not let go is neither split nor merged."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._journals = 10  # what a name ends in is larger than what its parents' names end in
        super().__init__(*arguments, **options)

    def split(self, name: str, at: bytes, *, zombie: bool) -> bool:
        """Cut the interval of ``at`` in two there, if that may be done; whether it was."""
        slots = self.slots[name]
        index = next(number for number, (keys, _) in enumerate(slots) if at in keys)
        keys, journal = slots[index]
        if at == keys.start or journal in self.parents:
            return False
        parents = [Parent(journal, keys)]
        self._replace(name, index, 1, list(keys.split(at)), parents, zombie=zombie)
        return True

    def merge(self, name: str, which: int, *, zombie: bool) -> bool:
        """Make one interval of two neighbours, if that may be done; whether it was."""
        slots = self.slots[name]
        if len(slots) < 2:
            return False
        index = which % (len(slots) - 1)
        (low, first), (high, second) = slots[index : index + 2]
        if first in self.parents or second in self.parents:
            return False
        parents = [Parent(first, low), Parent(second, high)]
        self._replace(name, index, 2, [KeyInterval(low.start, high.end)], parents, zombie=zombie)
        return True

    def _replace(
        self, name: str, index: int, count: int, ranges: list[KeyInterval], parents: list[Parent], *, zombie: bool
    ) -> None:
        """One transaction of the master's: these intervals are no more, those are there."""
        fresh: list[tuple[KeyInterval, str]] = []
        for keys in ranges:
            self._journals += 1
            fresh.append((keys, f"{name}/c{self._journals}"))
        self.slots[name][index : index + count] = fresh
        for parent in parents:
            self.end(self.current.pop(parent.journal), zombie=zombie)
        for keys, journal in fresh:
            self.parents[journal] = list(parents)
            self.start(name, keys, journal)
        for _, journal in fresh:
            self.disconnected(journal)

    def prepare_release(self, which: int) -> None:
        """An interval is notified that it is to change hands soon."""
        owners = [self.current[journal] for journal in sorted(self.current)]
        owner = owners[which % len(owners)]
        self.tasks.append(Task(owner, PrepareRelease(object())))

    def handle(self, owner: Owner, event: Any) -> None:
        """Children that have let go say so, now and then."""
        super().handle(owner, event)
        if owner.journal in self.parents and owner.core.independent and not self._reported(owner.journal):
            self.tasks.append(Task(None, Released(owner.journal)))

    def _reported(self, journal: str) -> bool:
        return any(isinstance(task.what, Released) and task.what.journal == journal for task in self.tasks)

    def perform(self, index: int, *, lose: bool = False, repeat: bool = False) -> None:
        """As before; word of children that have let go has its effect at the master, who drops their parents."""
        what = self.tasks[index].what
        if not isinstance(what, Released):
            super().perform(index, lose=lose, repeat=repeat)
            return
        del self.tasks[index]
        gone = self.parents.pop(what.journal, [])
        named = {parent.journal for parents in self.parents.values() for parent in parents}
        for parent in gone:
            if parent.journal not in named:
                now_of(self.store.drop_journal(parent.journal))
                self._retired(parent.journal)

    def _retired(self, journal: str) -> None:
        """Every worker hears of it, some time."""
        for owner in self.current.values():
            senders = owner.core.state.config.senders
            self.tasks.append(Task(owner, CatalogChanged(senders, retired=frozenset({journal}))))


class SeededHistory:
    """A history of such a world, chosen by a seed."""

    world: ShiftingWorld

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def perform(self) -> None:
        """Perform some tasks in any order. Some are lost or repeated."""
        for _ in range(self.chance.randint(1, 40)):
            if self.world.tasks:
                how = self.chance.choice("pppppplr")
                self.world.perform(self.chance.randrange(len(self.world.tasks)), lose=how == "l", repeat=how == "r")

    def perform_in_order(self) -> None:
        """Perform some tasks in the order in which they came."""
        for _ in range(self.chance.randint(1, 80)):
            if self.world.tasks:
                self.world.perform(0)
