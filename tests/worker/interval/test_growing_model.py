"""States that grow, against Python's own collections: slow store, small cache, failing hooks, crashes (G1, G2, G12).

Histories from seeds. Pages are tiny, so that a few elements make deep trees. Each hook produces a part of what it sees,
so a page that is lost, old or of another key shows in the outputs. In the end, the store has the reachable pages alone.
``python -m tests.worker.interval.test_growing_model FIRST COUNT`` runs more.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar

import msgspec
import pytest

import millwheel as mw
from millwheel.model.page_keys import is_page_key
from millwheel.model.time import Duration, Timestamp, seconds
from millwheel.sdk.growing import tree
from millwheel.testing import cluster
from millwheel.testing.harness import TopologyHarness
from millwheel.worker.interval.cache import pages as interval_pages
from millwheel.worker.interval.state import IntervalState
from tests.sdk.growing.pages import page_rows_of
from tests.stored_rows import rows_of
from tests.testing.inside import cluster_of
from tests.worker.interval.test_spilled_timers import SMALL, SlowStore

KEYS = ["a", "b", "m", "z"]
NAMES = [f"{'long' * 30 * (number % 4 == 2)}n{number}" * (number % 4 + 1) for number in range(12)]
"""Keys of maps. Some are longer than the tiny pages, and have a common prefix."""
SEEDS = 40


class Order(msgspec.Struct):
    key: str
    what: str
    number: int
    fails: bool = False


class Kept(mw.GrowingState):
    total: int = 0
    numbers: mw.ListState[int]
    names: mw.MapState[str, str]
    seen: mw.SetState[int]
    times: mw.OrderedState[int]
    counts: mw.CounterState[str]
    ending: mw.ExpiringMapState[str, str]


@dataclass
class Model:
    """The model of the state, with Python's own collections."""

    total: int = 0
    numbers: list[int] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    times: list[tuple[int, int]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    ending: dict[str, tuple[int, str]] = field(default_factory=dict)


class Keeper(mw.Computation[Order, Kept]):
    """Follows an order, and produces a part of the state that it reads."""

    def __init__(self) -> None:
        self.failed: set[int] = set()

    def process_record(self, ctx: mw.Context[Kept], record: mw.Record[Order]) -> None:
        order = record.value
        ctx.state.total += 1
        if order.what == "forget":
            del ctx.state
            ctx.produce("seen", (order.number, "forgotten"))
            return
        result = getattr(self, order.what)(ctx.state, order.number)
        ctx.produce("seen", (order.number, f"{order.what} {ctx.state.total} {result}"))
        if order.fails and order.number not in self.failed:
            self.failed.add(order.number)
            raise ValueError("it fails once")

    def append(self, state: Kept, number: int) -> Any:
        state.numbers.extend(range(number, number + number % 30))
        return len(state.numbers), state.numbers[-1] if state.numbers else None

    def ring(self, state: Kept, number: int) -> Any:
        state.numbers.append(number, keep=number % 9 + 1)
        return state.numbers[0], len(state.numbers)

    def pops(self, state: Kept, number: int) -> Any:
        return [state.numbers.pop() if number % 2 else state.numbers.popleft() for _ in range(len(state.numbers) // 2)]

    def put(self, state: Kept, number: int) -> Any:
        state.names[NAMES[number % 12]] = f"{number} " * (number % 90)
        return state.names.get(NAMES[number % 7])

    def drop(self, state: Kept, number: int) -> Any:
        return state.names.pop(NAMES[number % 12], None), len(state.names)

    def see(self, state: Kept, number: int) -> Any:
        found = [one in state.seen for one in range(number % 40, number % 40 + 9)]
        state.seen.add(number % 50)
        state.seen.discard((number + 7) % 50)
        return found

    def at(self, state: Kept, number: int) -> Any:
        state.times.add(Timestamp(number % 20), number)
        return state.times.first(), state.times.last(), len(state.times)

    def until(self, state: Kept, number: int) -> Any:
        return state.times.pop_until(Timestamp(number % 20))

    def count(self, state: Kept, number: int) -> Any:
        return state.counts.add(NAMES[number % 12], number % 3 - 1), state.counts[NAMES[number % 5]]

    def lend(self, state: Kept, number: int) -> Any:
        for one in range(number, number + 4):
            state.ending.put(NAMES[one * 5 % 12], f"{one} " * (one % 60), ends=Timestamp(one % 20))
        return state.ending.next_end(), state.ending.end_of(NAMES[number % 7])

    def give_back(self, state: Kept, number: int) -> Any:
        if NAMES[number % 12] in state.ending:
            del state.ending[NAMES[number % 12]]
        return len(state.ending), state.ending.get(NAMES[number % 7])

    def expire(self, state: Kept, number: int) -> Any:
        return state.ending.expire(Timestamp(number % 20), limit=number % 3 + 1 if number % 2 else None)

    def clear(self, state: Kept, number: int) -> Any:
        (state.numbers, state.names, state.seen)[number % 3].clear()
        return len(state.numbers), len(state.names)

    def swallow(self, state: Kept, number: int) -> Any:
        try:
            return state.numbers[number % len(state.numbers)]
        except BaseException:  # as user code may do by mistake
            return "nothing"

    def look(self, state: Kept, number: int) -> Any:
        return content(state)


class Expected:
    """Applies the same orders to the model."""

    append: Callable[..., Any] = Keeper.append

    def __init__(self) -> None:
        self.models = {key: Model() for key in KEYS}

    def take(self, order: Order) -> str:
        """Process an order. Returns what its hook produces."""
        model = self.models[order.key]
        model.total += 1
        if order.what == "forget":
            self.models[order.key] = Model()
            return "forgotten"
        result = getattr(self, order.what)(model, order.number)
        return f"{order.what} {model.total} {result}"

    def ring(self, model: Model, number: int) -> Any:
        model.numbers.append(number)
        del model.numbers[: max(0, len(model.numbers) - (number % 9 + 1))]
        return model.numbers[0], len(model.numbers)

    def pops(self, model: Model, number: int) -> Any:
        return [model.numbers.pop(-1 if number % 2 else 0) for _ in range(len(model.numbers) // 2)]

    def put(self, model: Model, number: int) -> Any:
        return Keeper.put(self, model, number)  # type: ignore[arg-type]

    def drop(self, model: Model, number: int) -> Any:
        return Keeper.drop(self, model, number)  # type: ignore[arg-type]

    def see(self, model: Model, number: int) -> Any:
        return Keeper.see(self, model, number)  # type: ignore[arg-type]

    def at(self, model: Model, number: int) -> Any:
        place = bisect_left(model.times, (number % 20 + 1, -1))
        model.times.insert(place, (number % 20, number))
        return model.times[0], model.times[-1], len(model.times)

    def until(self, model: Model, number: int) -> Any:
        found = [one for one in model.times if one[0] < number % 20]
        model.times = model.times[len(found) :]
        return found

    def count(self, model: Model, number: int) -> Any:
        name = NAMES[number % 12]
        model.counts[name] += number % 3 - 1
        total = model.counts[name]
        if not total:
            del model.counts[name]
        return total, model.counts[NAMES[number % 5]]

    def lend(self, model: Model, number: int) -> Any:
        for one in range(number, number + 4):
            model.ending[NAMES[one * 5 % 12]] = one % 20, f"{one} " * (one % 60)
        return min(model.ending.values())[0], model.ending.get(NAMES[number % 7], (None,))[0]

    def give_back(self, model: Model, number: int) -> Any:
        model.ending.pop(NAMES[number % 12], None)
        return len(model.ending), model.ending.get(NAMES[number % 7], (0, None))[1]

    def expire(self, model: Model, number: int) -> Any:
        ended = sorted((end, len(key), key, value) for key, (end, value) in model.ending.items() if end <= number % 20)[
            : number % 3 + 1 if number % 2 else None
        ]
        for _, _, key, _ in ended:
            del model.ending[key]
        return [(key, value) for _, _, key, value in ended]

    def clear(self, model: Model, number: int) -> Any:
        return Keeper.clear(self, model, number)  # type: ignore[arg-type]

    def swallow(self, model: Model, number: int) -> Any:
        return model.numbers[number % len(model.numbers)] if model.numbers else "nothing"

    def look(self, model: Model, number: int) -> Any:
        return content(model)


def content(state: Any) -> Any:
    """The content of a state, in an order that does not depend on its storage."""
    return (
        list(state.numbers),
        sorted(state.names.items()),
        sorted(state.seen),
        list(state.times),
        sorted(state.counts.items()),
        sorted(state.ending.items())
        if isinstance(state, Kept)
        else sorted((k, v) for k, (_, v) in state.ending.items()),
    )


WHATS = ["append", "append", "ring", "pops", "put", "put", "drop", "see", "at", "at", "until", "count", "clear"]
WHATS += ["swallow", "look", "forget", "lend", "lend", "lend", "give_back", "expire"]


@contextmanager
def tiny_pages(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pages of some elements, and collections that are deleted page by page."""
    with patch.context() as patched:
        patched.setattr(cluster, "CoreDriver", SlowStore)
        for name, size in {"PAGE_BYTES": 120, "ROOT_BYTES": 40, "BLOB_BYTES": 70, "SMALL_BYTES": 30}.items():
            patched.setattr(tree, name, size)
        patched.setattr(interval_pages, "MAX_COLLECTED_PAGES", 3)
        yield


class OrderHistory:
    """A history of a topology whose computation ``keeper`` follows orders. The store is slow, and the cache small."""

    whats: ClassVar[Sequence[str]]

    def __init__(self, seed: int, topology: mw.Topology) -> None:
        self.chance = Random(seed)
        self.harness = TopologyHarness(
            topology, split_at=["k"], now=Timestamp(1_000), settings=SMALL, any_timestamp=True
        )
        driver = cluster_of(self.harness).driver
        assert isinstance(driver, SlowStore)
        self.driver = driver
        self.reached: Counter[str] = Counter()
        self.orders = 0
        self.open: dict[int, Order] = {}
        self.checked = 0

    def send(self, whats: Sequence[str] | None = None, keys: Sequence[str] = KEYS) -> None:
        orders = []
        for _ in range(self.chance.randint(1, 6)):
            self.orders += 1
            number = self.orders * 60 + self.chance.randrange(60)
            fails = self.chance.random() < 0.1
            orders.append(Order(self.chance.choice(keys), self.chance.choice(whats or self.whats), number, fails))
        self.open |= {order.number: order for order in orders}
        self.harness.send_all("orders", [(order, Timestamp(order.number)) for order in orders])

    def pass_time(self) -> None:
        self.harness.advance_clock(Duration(self.chance.randint(1, 30)))

    @staticmethod
    def works(state: IntervalState) -> bool:
        """Whether records wait, rows are behind, or discarded pages are left: no other timer is in processing time."""
        collects = state.timers.processing_time.first_time is not None
        return collects or bool(state.intake.records or state.cells.dirty_count)

    def settle(self) -> list[Any]:
        """Finish all waiting work. Returns what has come out since the last time, per key in the order of commits."""
        self.driver.chance = None
        self.harness.advance_clock(seconds(1))
        while any(self.works(core.state) for core in self.driver.cores.values()):
            self.harness.advance_clock(seconds(1))
        seen = self.harness.values("seen")
        news, self.checked = seen[self.checked :], len(seen)
        return news

    def check_pages(self) -> None:
        """The store has each reachable page once, and no other pages."""
        stored = rows_of(self.harness.store, cluster_of(self.harness).incarnations["keeper"])
        reachable: set[bytes] = set()
        for key in KEYS:
            state = self.harness.state("keeper", key)
            reachable |= set() if state is None else page_rows_of(key, state)
        pages = {row.key for row in stored if is_page_key(row.key)}
        assert pages == reachable, (pages - reachable, reachable - pages)
        self.reached["deep"] += len(reachable) > 12


class History(OrderHistory):
    """One history."""

    whats = WHATS

    def __init__(self, seed: int) -> None:
        made = mw.Topology("kept")
        made.source("orders", Order)
        self.weak = seed % 4 == 3
        made.add(
            Keeper(), name="keeper", inputs={"orders": mw.key("key")}, outputs={"seen": tuple[int, str]},
            on_failure=mw.dead_letter(after=99, initial=Duration(3), maximum=Duration(9)), strong=not self.weak,
        )  # fmt: skip
        super().__init__(seed, made)
        self.expected = Expected()

    def run(self) -> Counter[str]:
        steps = [self.send, self.send, self.send, self.pass_time, self.harness.crash, self.rest]
        for _ in range(self.chance.randint(20, 60)):
            self.driver.chance = self.chance
            self.chance.choice(steps)()
            cells = [core.state.cells for core in self.driver.cores.values()]
            self.reached["evicted"] += any(one.evicted for one in cells)
            self.reached["pages"] += any(one.pages for one in cells)
        self.rest()
        return self.reached

    def rest(self) -> None:
        """Finish all waiting work. The store has each page once, and no other pages."""
        for number, what in self.settle():
            # Per key, outputs come in the order of the commits (G15).
            assert what == self.expected.take(self.open.pop(number))
        assert not self.open
        for key in KEYS:
            state = self.harness.state("keeper", key)
            assert content(state or Model()) == content(self.expected.models[key])
        self.check_pages()


def simulate(seeds: range, patch: pytest.MonkeyPatch, run: Callable[[int], Counter[str]]) -> Counter[str]:
    """Run the histories of these seeds. Returns the counts of their cases. The first failing seed is named."""
    reached: Counter[str] = Counter()
    with tiny_pages(patch):
        for seed in seeds:
            try:
                reached += run(seed)
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise
    return reached


def run_history(seed: int) -> Counter[str]:
    return History(seed).run()


@pytest.mark.guarantee("G2", section="4.4")
@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("part", range(4))
def test_growing_states_equal_pythons_collections(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    first = 3_000 + part * SEEDS // 4
    reached = simulate(range(first, first + SEEDS // 4), monkeypatch, run_history)
    assert reached.keys() >= {"evicted", "pages", "deep"}


if __name__ == "__main__":
    first, count = int(sys.argv[1]), int(sys.argv[2])
    sys.stdout.write(f"{dict(simulate(range(first, first + count), pytest.MonkeyPatch(), run_history))}\n")
