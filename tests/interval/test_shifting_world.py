"""Interval cores in a hostile world in which intervals are moved, split and merged (G1, G6, G7, G8, G11, G12, G15).

As in ``test_model_world``, but from seeds: a history with enough in it to split what was merged and to merge what
was split is longer than Hypothesis likes. ``python -m tests.interval.test_shifting_world FIRST COUNT`` runs more.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable

import pytest

from millwheel.model.time import MAX_TIMESTAMP
from tests.interval.checks import check_counts, check_productions_in_order, check_quiet, check_soft_state
from tests.interval.programs import Event, Outside, topology
from tests.interval.shifting import SeededHistory, ShiftingWorld

KEYS = ["a", "b", "m", "z"]
GROUPS = ["g", "p"]
KINDS = ["plain", "plain", "plain", "flaky", "poison", "wall"]
NAMES = ["mapper", "counter"]
SEEDS = 15

MODES = {
    "strong": {"strong": True, "waiting": False, "late": False},
    "weak": {"strong": False, "waiting": False, "late": False},
    "asynchronous": {"strong": True, "waiting": True, "late": False},
    "late": {"strong": True, "waiting": False, "late": True},
    "weak, late": {"strong": False, "waiting": False, "late": True},
    "weak, steady": {"strong": False, "waiting": False, "late": False, "steady": True},
}


class History(SeededHistory):
    """One history, chosen by a seed."""

    def __init__(self, seed: int, *, strong: bool, waiting: bool, late: bool, steady: bool = False) -> None:
        """``steady``: mappers neither crash nor change hands, so that what is produced weakly keeps its order."""
        super().__init__(seed)
        self.late = late
        self.steady = steady
        self.in_order = (strong or steady) and not late
        self.outside = Outside(on_time=not late)
        made = topology(self.outside, strong=strong, waiting=waiting)
        self.world = ShiftingWorld(made, {"mapper": ["k"], "counter": ["h"]})
        self.events: list[Event] = []
        self.reached: Counter[str] = Counter()

    def run(self) -> Counter[str]:
        """Something happens again and again; then everything heals, and each record must have counted once."""
        steps = [self.inject, self.pass_time, self.perform, self.perform, self.perform_in_order, self.perform_in_order]
        steps += [self.crash, self.split, self.merge, self.shift]
        for _ in range(self.chance.randint(10, 60)):
            self.chance.choice(steps)()
            check_soft_state(self.world)
            self.look()
        self.finish()
        return self.reached

    def inject(self) -> None:
        made = []
        for _ in range(self.chance.randint(1, 5)):
            at = max(0, self.world.declared) + self.chance.randint(0, 40) - (20 if self.late else 0)
            key, group, kind = (self.chance.choice(options) for options in (KEYS, GROUPS, KINDS))
            self.events.append(Event(len(self.events), key, group, kind, at))
            made.append((self.events[-1], at))
        self.world.inject(made)

    def pass_time(self) -> None:
        if self.chance.random() < 0.5:
            self.world.advance(max(0, self.world.declared) + self.chance.randint(1, 25))
        else:
            self.world.now += self.chance.randint(1, 60)
            self.world.ring()

    def crash(self) -> None:
        journals = [one for one in sorted(self.world.current) if not (self.steady and one.startswith("mapper/"))]
        self.world.crash(self.chance.choice(journals), zombie=self.chance.random() < 0.5)

    def _name(self) -> str:
        return "counter" if self.steady else self.chance.choice(NAMES)

    def split(self) -> None:
        name, at = self._name(), self.chance.choice("bghmpy").encode()
        self.reached["split"] += self.world.split(name, at, zombie=self.chance.random() < 0.5)

    def merge(self) -> None:
        name, which = self._name(), self.chance.randint(0, 3)
        self.reached["merged"] += self.world.merge(name, which, zombie=self.chance.random() < 0.5)

    def shift(self) -> None:
        steps: list[Callable[[], None]] = [self.split, self.merge, self.prepare_release]
        self.chance.choice(steps)()

    def prepare_release(self) -> None:
        self.world.prepare_release(self.chance.randint(0, 7))

    def look(self) -> None:
        for owner in self.world.current.values():
            state = owner.core.state
            self.reached["keys with floors"] += state.clocks.bounded
            self.reached["inherited productions"] += bool(state.outbox.inherited)
            self.reached["entries above parents"] += (
                not state.journal.parts and state.committed > state.journal.truncation_point > 0
            )

    def finish(self) -> None:
        world = self.world
        world.resend_injected()
        world.advance(MAX_TIMESTAMP)
        world.settle()
        check_soft_state(world)
        self.check()
        before = list(world.out)
        for delivery in world.sent:
            world.unacked[delivery.token] = delivery
        world.resend_injected()
        world.settle()
        self.check()
        assert world.out == before

    def check(self) -> None:
        check_quiet(self.world)
        check_counts(self.world, self.outside, self.events)
        if self.in_order:
            check_productions_in_order(self.world, self.events)


def simulate(seeds: range, mode: str) -> Counter[str]:
    """What histories of these seeds reached; the first that fails is named."""
    reached: Counter[str] = Counter()
    for seed in seeds:
        try:
            reached += History(seed, **MODES[mode]).run()
        except BaseException as error:
            error.add_note(f"in mode {mode!r}, seed {seed}")
            raise
    return reached


@pytest.mark.guarantee("G11", section="7.1")
@pytest.mark.parametrize("mode", MODES)
def test_splits_and_merges_lose_nothing_and_repeat_nothing(mode: str) -> None:
    reached = simulate(range(SEEDS), mode)
    assert reached["split"] > SEEDS // 2
    assert reached["merged"] > SEEDS // 2
    if mode == "strong":
        assert reached.keys() >= {"inherited productions", "entries above parents"}


if __name__ == "__main__":
    first, count = int(sys.argv[1]), int(sys.argv[2])
    for name in MODES:
        sys.stdout.write(f"{name}: {dict(simulate(range(first, first + count), name))}\n")
