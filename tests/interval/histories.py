"""What happens to a hostile world, chosen by a seed: everything at any time, and then everything heals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from millwheel.model.time import MAX_TIMESTAMP
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.messages import PrepareRelease
from tests.interval.checks import check_quiet, check_soft_state
from tests.interval.world import Taking, Task, World

__all__ = ["KEYS", "History", "simulate", "tight"]

KEYS = ["a", "b", "m", "z"]


def tight(random: Random) -> IntervalSettings:
    """Bounds of one to three of everything."""
    return IntervalSettings(
        batch_records=random.choice((1, 1, 2, 3)),
        batch_bytes=random.choice((200, 2_000)),
        queue_records=random.randint(1, 3),
        outbox_records=random.choice((1, 1, 2, 3)),
        cache_bytes=random.choice((0, 1_000)),
        flush_interval=random.choice((0, 7)),
        flush_rows=random.randint(1, 3),
        flush_apart=7,
        checkpoint_entries=random.randint(1, 3),
        entry_bytes=random.choice((300, 10_000)),
        timer_part=random.randint(1, 3),
        timers_kept=random.randint(1, 3),
        timer_lead=3,
        async_hooks=random.randint(1, 3),
    )


class History(ABC):
    """One history of a world; its subclasses say what is injected, and what must have come of it."""

    def __init__(self, seed: int, world: Callable[[Random], World]) -> None:
        self.chance = Random(seed)
        self.world = world(self.chance)
        self.reached: Counter[str] = Counter()
        self.steps = [self.inject, self.pass_time, self.perform, self.perform, self.perform_in_order]
        self.steps += [self.perform_in_order, self.crash]

    def run(self) -> Counter[str]:
        """Something happens again and again; then everything heals. Returns what was reached."""
        for _ in range(self.chance.randint(10, 60)):
            self.chance.choice(self.steps)()
            self.look()
        if self.world.taking is not Taking.ALL:
            self.world.taking = Taking.HOLDERS
        self.world.injector.resend()
        self.world.injector.advance(MAX_TIMESTAMP)
        self.world.settle()
        check_soft_state(self.world)
        check_quiet(self.world)
        self.check()
        return self.reached

    @abstractmethod
    def inject(self) -> None:
        """Inject some records."""

    def look(self) -> None:
        """After each step."""
        check_soft_state(self.world)

    @abstractmethod
    def check(self) -> None:
        """What must be true in the end."""

    def pass_time(self) -> None:
        """The injector's watermark, or the clock, advances."""
        if self.chance.random() < 0.5:
            self.world.injector.advance(max(0, self.world.injector.declared) + self.chance.choice([2, 10, 25, 60]))
        else:
            self.world.now += self.chance.randint(1, 60)
            self.world.ring()

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

    def may_change(self, name: str) -> bool:
        """Whether owners of a computation crash, and its intervals change."""
        return True

    def _name(self) -> str:
        return self.chance.choice([name for name in sorted(self.world.slots) if self.may_change(name)])

    def crash(self) -> None:
        """An owner dies, or becomes a zombie."""
        journals = [journal for _, journal in self.world.slots[self._name()]]
        self.world.crash(self.chance.choice(journals), zombie=self.chance.random() < 0.5)

    def shift(self) -> None:
        """An interval is split, merged with another, or is to change hands soon."""
        zombie = self.chance.random() < 0.5
        what = self.chance.choice(["split", "merged", "prepared"])
        if what == "split":
            self.reached[what] += self.world.split(self._name(), self.chance.choice("bghmpy").encode(), zombie=zombie)
        elif what == "merged":
            self.reached[what] += self.world.merge(self._name(), self.chance.randint(0, 3), zombie=zombie)
        else:
            owner = self.world.current[self.chance.choice(sorted(self.world.current))]
            self.world.tasks.append(Task(owner, PrepareRelease(object())))


def simulate(make: Callable[..., History], seeds: range, **options: Any) -> Mapping[str, int]:
    """What histories of these seeds reached; the first that fails is named."""
    reached: Counter[str] = Counter()
    for seed in seeds:
        try:
            reached += make(seed, **options).run()
        except BaseException as error:
            error.add_note(f"seed {seed}, {options}")
            raise
    return reached
