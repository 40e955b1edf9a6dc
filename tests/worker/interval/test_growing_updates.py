"""Growing states while new versions of the code replace each other, against Python's own collections (4.4; G1, G2).

Histories from seeds: a slow store, a small cache, failing hooks, crashes, and two updates at random places. Pages are
tiny. Each element shows which functions it has passed through. The model knows which version set it, so an element that
a function missed, or that one converted twice, shows in the outputs. In the end the store has the reachable pages
alone. ``python -m tests.worker.interval.test_growing_updates FIRST COUNT`` runs more.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
import pytest

import millwheel as mw
from millwheel.model.time import Duration, Timestamp
from millwheel.testing.harness import TopologyHarness
from tests.sdk.growing.pages import tree_of
from tests.worker.interval.test_growing import children
from tests.worker.interval.test_growing_model import KEYS, NAMES, Order, OrderHistory, simulate

SEEDS = 40


class Once(msgspec.Struct):
    """An element of the second version."""

    text: str


class Twice(msgspec.Struct):
    """An element of the third version."""

    parts: list[str]


def first_step(text: str) -> Once:
    return Once(f"{text}+")


def second_step(one: Once) -> Twice:
    return Twice([one.text, "*"])


class Kept1(mw.GrowingState):
    total: int = 0
    items: mw.ListState[str]
    names: mw.MapState[str, str]
    times: mw.OrderedState[str]
    ending: mw.ExpiringMapState[str, str]
    gone: mw.MapState[str, str]


class Kept2(mw.GrowingState):
    count: int = 0
    items: mw.ListState[Once] = mw.migrated(first_step)
    names: mw.MapState[str, Once] = mw.migrated(first_step)
    times: mw.OrderedState[Once] = mw.migrated(first_step)
    ending: mw.ExpiringMapState[str, Once] = mw.migrated(first_step)
    gone: mw.Dropped
    seen: mw.SetState[int]


class Kept3(mw.GrowingState):
    count: int = 0
    items: mw.ListState[Twice] = mw.migrated(first_step, second_step)
    names: mw.MapState[str, Twice] = mw.migrated(first_step, second_step)
    times: mw.OrderedState[Twice] = mw.migrated(first_step, second_step)
    ending: mw.ExpiringMapState[str, Twice] = mw.migrated(first_step, second_step)
    gone: mw.Dropped
    seen: mw.Dropped


def made(version: int, text: str) -> Any:
    """An element that a version sets."""
    return text if version == 1 else Once(text) if version == 2 else Twice([text])


Set = tuple[int, Any]
"""An element in the model: the version that set it, and its value then."""


def as_read(version: int, element: Set) -> Any:
    """An element as a version reads it."""
    by, value = element
    if by == 1 < version:
        by, value = 2, Once(f"{value}+")
    return Twice([value.text, "*"]) if by == 2 < version else value


class Keeper:
    """Follows an order, and produces a part of the state that it reads."""

    version: ClassVar[int]

    def __init__(self) -> None:
        self.failed: set[int] = set()

    def process_record(self, ctx: mw.Context[Any], record: mw.Record[Order]) -> None:
        order, version = record.value, self.version
        if version == 1:
            ctx.state.total += 1
        else:
            ctx.state.count += 1
        if order.what == "forget":
            del ctx.state
            result: Any = "forgotten"
        else:
            result = getattr(self, order.what)(ctx.state, order.number)
        ctx.produce("seen", (order.number, version, f"{order.what} {result}"))
        if order.fails and order.number not in self.failed:
            self.failed.add(order.number)
            raise ValueError("it fails once")

    def append(self, state: Any, number: int) -> Any:
        state.items.extend(made(self.version, text(one)) for one in range(number, number + number % 9))
        return len(state.items), state.items[-1] if state.items else None

    def pops(self, state: Any, number: int) -> Any:
        return [state.items.popleft() for _ in range(len(state.items) // 2)]

    def set_again(self, state: Any, number: int) -> Any:
        """Store an element as it was read."""
        if state.items:
            state.items[number % len(state.items)] = state.items[number % len(state.items)]

    def put(self, state: Any, number: int) -> Any:
        state.names[NAMES[number % 12]] = made(self.version, text(number))
        return state.names.get(NAMES[number % 7])

    def at(self, state: Any, number: int) -> Any:
        state.times.add(Timestamp(number % 20), made(self.version, text(number)))
        return state.times.first(), state.times.last()

    def until(self, state: Any, number: int) -> Any:
        return state.times.pop_until(Timestamp(number % 20))

    def lend(self, state: Any, number: int) -> Any:
        for one in range(number, number + 3):
            state.ending.put(NAMES[one * 5 % 12], made(self.version, text(one)), ends=Timestamp(one % 20))
        return state.ending.get(NAMES[number % 7])

    def expire(self, state: Any, number: int) -> Any:
        return sorted(state.ending.expire(Timestamp(number % 20)), key=lambda item: item[0])

    def fill(self, state: Any, number: int) -> Any:
        if self.version == 1:
            state.gone.update((str(one), text(one)) for one in range(number % 20))

    def look(self, state: Any, number: int) -> Any:
        return content(state)


class Keeper1(Keeper, mw.Computation[Order, Kept1]):
    version = 1


class Keeper2(Keeper, mw.Computation[Order, Kept2]):
    version = 2
    state_version = 2

    def migrate(self, stored: mw.StoredState) -> Kept2:
        state = Kept2()
        state.count = stored.read(Kept1).total
        return state


class Keeper3(Keeper, mw.Computation[Order, Kept3]):
    version = 3
    state_version = 2

    def migrate(self, stored: mw.StoredState) -> Kept3:
        state = Kept3()
        state.count = stored.plain()["total"]
        return state


KEEPERS: dict[int, type[mw.Computation[Any, Any]]] = {1: Keeper1, 2: Keeper2, 3: Keeper3}


@dataclass
class Model:
    """A key's state, with Python's own collections."""

    count: int = 0
    items: list[Set] = field(default_factory=list)
    names: dict[str, Set] = field(default_factory=dict)
    times: list[tuple[int, Set]] = field(default_factory=list)
    ending: dict[str, tuple[int, Set]] = field(default_factory=dict)

    def content(self, version: int) -> Any:
        """See the function."""
        return (
            self.count,
            [as_read(version, one) for one in self.items],
            [(key, as_read(version, one)) for key, one in sorted(self.names.items())],
            [(at, as_read(version, one)) for at, one in self.times],
            [(key, as_read(version, one)) for key, (_, one) in sorted(self.ending.items())],
        )


class Expected:
    """Applies the orders to the models of all keys, as one version."""

    def __init__(self) -> None:
        self.models = {key: Model() for key in KEYS}
        self.version = 1

    def take(self, order: Order, version: int) -> str:
        """Process an order. Returns what its hook produces."""
        self.version = version
        model = self.models[order.key]
        model.count += 1
        if order.what == "forget":
            self.models[order.key] = Model()
            return "forget forgotten"
        return f"{order.what} {getattr(self, order.what)(model, order.number)}"

    def set_by(self, number: int) -> Set:
        return self.version, made(self.version, text(number))

    def read(self, element: Set | None) -> Any:
        return None if element is None else as_read(self.version, element)

    def append(self, model: Model, number: int) -> Any:
        model.items += [self.set_by(one) for one in range(number, number + number % 9)]
        return len(model.items), self.read(model.items[-1] if model.items else None)

    def pops(self, model: Model, number: int) -> Any:
        return [self.read(model.items.pop(0)) for _ in range(len(model.items) // 2)]

    def set_again(self, model: Model, number: int) -> Any:
        if model.items:
            at = number % len(model.items)
            model.items[at] = self.version, self.read(model.items[at])

    def put(self, model: Model, number: int) -> Any:
        model.names[NAMES[number % 12]] = self.set_by(number)
        return self.read(model.names.get(NAMES[number % 7]))

    def at(self, model: Model, number: int) -> Any:
        model.times.append((number % 20, self.set_by(number)))
        model.times.sort(key=lambda one: one[0])
        return tuple((at, self.read(one)) for at, one in (model.times[0], model.times[-1]))

    def until(self, model: Model, number: int) -> Any:
        found = [(at, self.read(one)) for at, one in model.times if at < number % 20]
        del model.times[: len(found)]
        return found

    def lend(self, model: Model, number: int) -> Any:
        for one in range(number, number + 3):
            model.ending[NAMES[one * 5 % 12]] = one % 20, self.set_by(one)
        return self.read(model.ending.get(NAMES[number % 7], (0, None))[1])

    def expire(self, model: Model, number: int) -> Any:
        ended = sorted(key for key, (end, _) in model.ending.items() if end <= number % 20)
        return [(key, self.read(model.ending.pop(key)[1])) for key in ended]

    def fill(self, model: Model, number: int) -> Any:
        """Nothing reads this collection, which is dropped."""

    def look(self, model: Model, number: int) -> Any:
        return model.content(self.version)


WHATS = ["append", "append", "pops", "set_again", "set_again", "put", "put", "at", "at", "until", "lend", "lend"]
WHATS += ["expire", "fill", "fill", "look", "forget"]


def text(number: int) -> str:
    return f"{number} " * (number % 40)


def content(state: Any) -> Any:
    return (
        state.total if isinstance(state, Kept1) else state.count,
        list(state.items),
        sorted(state.names.items(), key=lambda item: item[0]),
        list(state.times),
        sorted(state.ending.items(), key=lambda item: item[0]),
    )


def kept(version: int) -> mw.Topology:
    """The topology with a version of the code."""
    topology = mw.Topology("kept")
    topology.source("orders", Order)
    topology.add(
        KEEPERS[version], name="keeper", inputs={"orders": mw.key("key")}, outputs={"seen": tuple[int, int, str]},
        on_failure=mw.dead_letter(after=99, initial=Duration(3), maximum=Duration(9)),
    )  # fmt: skip
    return topology


class Updated(OrderHistory):
    """One history, with updates."""

    whats = WHATS

    def __init__(self, seed: int) -> None:
        super().__init__(seed, kept(1))
        self.version = 1
        self.expected = Expected()

    def run(self) -> Counter[str]:
        steps = [self.send, self.send, self.send, self.pass_time, self.harness.crash, self.rest]
        updates = sorted(self.chance.choices(range(5, 50), k=2))
        for step in range(60):
            self.driver.chance = self.chance
            if step in updates:
                self.update(1 if updates[0] < updates[1] else 2)
            self.chance.choice(steps)()
            self.reached["evicted"] += any(core.state.cells.evicted for core in self.driver.cores.values())
        self.finish()
        return self.reached

    def update(self, by: int) -> None:
        """Go to a later version, also past one."""
        self.reached["in flight"] += bool(self.driver.delayed)
        states = [self.harness.state("keeper", key) for key in KEYS]
        self.reached["dropped"] += any(isinstance(one, Kept1) and tree_of(one.gone).depth > 0 for one in states)
        self.version += by
        self.harness.update(kept(self.version))

    def rest(self) -> None:
        """Finish all waiting work, and compare the states."""
        for number, version, what in self.settle():
            # Per key, outputs come in the order of the commits (G15).
            self.reached["old elements"] += self.holds_old_elements(version)
            assert what == self.expected.take(self.open.pop(number), version)
        assert not self.open
        for key in KEYS:
            state = self.harness.state("keeper", key)
            model = self.expected.models[key]
            assert (Model().content(1) if state is None else content(state)) == model.content(self.version)

    def holds_old_elements(self, version: int) -> bool:
        return any(by < version for model in self.expected.models.values() for by, _ in model.items)

    def finish(self) -> None:
        """Use each key, so that dropped collections are deleted. The store then has the reachable pages alone."""
        self.rest()
        for key in KEYS:
            self.send(["look"], [key])
        self.rest()
        self.check_pages()


def run_updated(seed: int) -> Counter[str]:
    return Updated(seed).run()


@pytest.mark.guarantee("G1", section="4.4")
@pytest.mark.guarantee("G2")
@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("part", range(4))
def test_updates_convert_each_element_once(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    first = 5_000 + part * SEEDS // 4
    reached = simulate(range(first, first + SEEDS // 4), monkeypatch, run_updated)
    assert reached.keys() >= {"evicted", "deep", "old elements", "dropped", "in flight"}


def length(item: str) -> int:
    return len(item)


class Lengths(mw.GrowingState):
    calls: int = 0
    items: mw.ListState[int] = mw.migrated(length)


class Sums(mw.Computation[tuple[str, str], Lengths]):
    """Follows on :class:`Appender`. It adds up the lengths of all elements, or appends one."""

    def process_record(self, ctx: mw.Context[Lengths], record: mw.Record[tuple[str, str]]) -> None:
        if record.value[1] == "sum":
            ctx.produce("out", f"{sum(ctx.state.items)}")
        else:
            ctx.state.items.append(int(record.value[1]))


@pytest.mark.guarantee("G11", section="4.2")
@pytest.mark.guarantee("G1", section="4.4")
@pytest.mark.parametrize("flushed", [False, True])
def test_a_new_owner_converts_what_others_have_stored(flushed: bool) -> None:
    """The children of a split run new code. One of them has converted some elements when it is taken over."""
    for child, keys in children(("k", "ka"), flushed, Sums):
        key = "k" if b"k" in keys else "ka"
        child.driver.deliver((key, "sum", 1), (key, "7", 2), (key, "sum", 3))
        child.settle()
        assert child.driver.sent() == [("15000", 1), ("15007", 3)]
        child.forget_cells()
        child.driver.deliver((key, "8", 4), (key, "sum", 5))
        child.settle()
        assert child.driver.sent() == [("15015", 5)]


@pytest.mark.paper(section="4.4")
def test_older_code_does_not_come_back() -> None:
    harness = TopologyHarness(kept(2), any_timestamp=True)
    with pytest.raises(mw.TopologyError, match="field 'items' was migrated by first_step, and is by nothing"):
        harness.update(kept(1))
    harness.send("orders", Order("a", "put", 60), Timestamp(60))
    assert harness.state("keeper", "a").count == 1


if __name__ == "__main__":
    first, count = int(sys.argv[1]), int(sys.argv[2])
    sys.stdout.write(f"{dict(simulate(range(first, first + count), pytest.MonkeyPatch(), run_updated))}\n")
