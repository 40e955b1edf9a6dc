"""Interval cores in a hostile world, compared with a model that knows no failures (G1, G5-G8, G10-G15).

Histories from seeds: records, watermarks, time, which task is performed, lost or repeated, who crashes or becomes a
zombie, which intervals are moved, split and merged, what consumers take. When there was enough of it everything heals,
must come to rest, and every record must have counted exactly once.
``python -m tests.interval.test_world FIRST COUNT`` runs more.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import pytest

from tests.interval.checks import check_counts, check_productions_in_order, check_quiet, check_reached, check_soft_state
from tests.interval.histories import KEYS, History, simulate, tight
from tests.interval.programs import MAPPERS, WINDOW, Event, Outside, topology
from tests.interval.world import SMALL, Taking, World

GROUPS = ["g", "p"]
KINDS = ["plain", "plain", "flaky", "poison", "wall", "many", "held"]
SEEDS = 15


class Counting(History):
    """Events are counted by key, by group and by window."""

    def __init__(self, seed: int, *, way: str, late: bool = False, steady: bool = False, full: bool = False) -> None:
        """``steady``: mappers neither crash nor change hands, so that what is produced weakly keeps its order.

        ``full``: bounds are tight, and consumers full most of the time.
        """
        self.way, self.late, self.steady = way, late, steady
        on_time = not late and way != "passing"  # what is not recognised as a copy may come late
        self.outside = Outside(on_time=on_time)
        self.events: list[Event] = []
        self.newest = 0
        super().__init__(
            seed,
            lambda chance: World(
                topology(self.outside, way),
                {"mapper": ["k"], "counter": ["h"]},
                tight(chance) if full else SMALL,
                on_time=on_time,
            ),
        )
        self.steps += [self.perform_in_order, self.take, self.take, self.rest] if full else [self.shift, self.shift]

    def may_change(self, name: str) -> bool:
        return not (self.steady and name == "mapper")

    def inject(self) -> None:
        made = []
        for _ in range(self.chance.randint(1, 5)):
            at = max(0, self.world.injector.declared) + self.chance.randint(0, 40) - (20 if self.late else 0)
            key, group, kind = (self.chance.choice(options) for options in (KEYS, GROUPS, KINDS))
            self.events.append(Event(len(self.events), key, group, kind, at))
            made.append((self.events[-1], at))
            self.newest = max(self.newest, at)
        self.world.injector.send(made)

    def take(self) -> None:
        """Consumers take something else from now on."""
        self.world.taking = self.chance.choice([*Taking, Taking.HOLDERS, Taking.HOLDERS])

    def rest(self) -> None:
        """For a while nothing fails: all that may go on comes to its end, also into consumers that are full (G8)."""
        declared = self.newest + 3 * WINDOW
        if self.chance.random() < 0.8:
            self.world.taking = Taking.HOLDERS
            self.world.injector.advance(declared)
        else:
            self.world.taking = Taking.ALL
        self.world.injector.resend()
        self.world.settle()
        assert self.world.injector.unacked == {}
        for owner in self.world.current.values():
            state = owner.core.state
            assert (state.intake.records, state.outbox.unacked.records) == (0, 0), owner.journal
        if self.world.taking is Taking.HOLDERS:
            assert set(self.world.broadcast.values()) == {self.world.injector.declared}, "nothing holds a watermark"

    def look(self) -> None:
        super().look()
        for owner in self.world.current.values():
            state = owner.core.state
            self.reached["inherited productions"] += bool(state.outbox.inherited)
            self.reached["entries above parents"] += (
                not state.journal.parts and state.committed > state.journal.truncation_point > 0
            )

    def check(self) -> None:
        """Also after everything that was ever sent has come once more."""
        if self.way == "passing":
            check_reached(self.world, self.events)
            return
        self._check_counts()
        before = list(self.world.out)
        self.world.injector.resend_everything()
        self.world.settle()
        check_quiet(self.world)
        check_soft_state(self.world)
        self._check_counts()
        assert self.world.out == before

    def _check_counts(self) -> None:
        check_counts(self.world, self.outside, self.events)
        if not self.late and (self.steady or "weak" not in self.way):
            check_productions_in_order(self.world, self.events)


def run(way: str, *, late: bool = False, steady: bool = False, full: bool = False) -> Mapping[str, int]:
    return simulate(Counting, range(SEEDS), way=way, late=late, steady=steady, full=full)


@pytest.mark.guarantee("G1", "G5", "G11", "G14", section="7.1")
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("way", ["strong", "asynchronous"])
def test_splits_and_merges_lose_nothing_and_repeat_nothing(way: str, late: bool) -> None:
    reached = run(way, late=late)
    assert reached["split"] > SEEDS // 2
    assert reached["merged"] > SEEDS // 2
    assert reached.keys() >= {"inherited productions", "entries above parents"}


@pytest.mark.guarantee("G1", "G10", "G11", "G14", section="6.1.3")
@pytest.mark.parametrize(
    ("way", "late", "steady"),
    [
        ("weak", False, False),
        ("weak", True, False),
        ("weak", False, True),
        ("weak, asynchronous", False, False),
        ("passing", False, False),
    ],
)
def test_weak_productions_take_effect_once_in_any_history(way: str, late: bool, steady: bool) -> None:
    run(way, late=late, steady=steady)


@pytest.mark.guarantee("G8", "G13", section="4.5")
@pytest.mark.parametrize("way", MAPPERS)
def test_all_comes_out_once_through_the_tightest_bounds(way: str) -> None:
    run(way, full=True)


if __name__ == "__main__":
    first, count = int(sys.argv[1]), int(sys.argv[2])
    for name in MAPPERS:
        for options in ({}, {"late": True}, {"full": True}, {"full": True, "late": True}):
            found = simulate(Counting, range(first, first + count), way=name, **options)
            sys.stdout.write(f"{name}, {options}: {dict(found)}\n")
