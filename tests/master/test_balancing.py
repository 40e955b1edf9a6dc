"""The balancer on a model whose keys have costs: it settles, and its changes help (sections 7.1, 8.4)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel.master.balancing import Balancer, BalanceSettings, ClusterView, IntervalView, WorkerView
from millwheel.master.messages import MergeIntervals, MoveInterval, ReshapeRequest, SplitInterval
from millwheel.master.trends import Pace
from millwheel.model.incarnation import IncarnationId
from millwheel.model.interval_map import check_coverage
from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.model.time import Duration, Timestamp, minutes, seconds
from millwheel.rpc.v1 import inspection_pb2 as wire

LIMITS = BalanceSettings()
AT_ONCE = Duration(0)
QUICK = replace(LIMITS, cool_down=AT_ONCE, cold_for=AT_ONCE, most_operations=1)
_SAMPLED = 16


@dataclass
class Held:
    """An interval of the cluster."""

    incarnation: IncarnationId
    keys: KeyInterval
    owner: str
    code: str | None
    sequencer: int = 1


class Cluster:
    """Keys of computations with their costs, and the workers that own them."""

    def __init__(self, workers: dict[str, tuple[str, float]], costs: dict[str, dict[bytes, float]]) -> None:
        """``workers``: package and base by name; ``costs``: by incarnation, what its keys cost."""
        self.workers = workers
        self.costs = costs
        self.held: dict[str, Held] = {}
        self.numbers = 0
        self.now = Timestamp(0)
        self.done: list[ReshapeRequest] = []

    def add(self, held: Held) -> None:
        self.numbers += 1
        self.held[f"j{self.numbers}"] = held

    def keys_of(self, held: Held) -> dict[bytes, float]:
        return {key: cost for key, cost in self.costs[held.incarnation].items() if key in held.keys}

    def loads(self) -> dict[str, float]:
        found = {name: base for name, (_, base) in self.workers.items()}
        for held in self.held.values():
            found[held.owner] += sum(self.keys_of(held).values())
        return found

    def view(self) -> ClusterView:
        ordered = sorted(self.held.items(), key=lambda one: (one[1].incarnation, one[1].keys.start))
        workers = tuple(WorkerView(name, package, base) for name, (package, base) in self.workers.items())
        return ClusterView(workers, tuple(self._seen(journal, held) for journal, held in ordered))

    def _seen(self, journal: str, held: Held) -> IntervalView:
        keys = self.keys_of(held)
        cost = sum(keys.values())
        hottest = sorted(keys, key=lambda key: (-keys[key], key))[:_SAMPLED]
        sample = tuple(wire.KeyLoad(key=key, share=keys[key] / cost) for key in sorted(hottest)) if cost else ()
        return IntervalView(
            journal,
            held.sequencer,
            IncarnationId(held.incarnation),
            held.keys,
            held.owner,
            held.code,
            cost,
            cost,
            records=1_000.0,
            sample=sample,
        )

    def apply(self, request: ReshapeRequest) -> None:
        held = self.held[request.interval.journal]
        assert request.expected == held.sequencer
        self.done.append(request)
        if isinstance(request, MoveInterval):
            self._check_move(held, request)
            held.owner, held.sequencer = request.worker, held.sequencer + 1
            return
        del self.held[request.interval.journal]
        if isinstance(request, SplitInterval):
            for keys in held.keys.split(request.at):
                self.add(replace(held, keys=keys))
            return
        journal, other = next(
            (name, one)
            for name, one in self.held.items()
            if one.incarnation == held.incarnation and one.keys.start == held.keys.end
        )
        del self.held[journal]
        self.add(replace(held, keys=KeyInterval(held.keys.start, other.keys.end), owner=request.worker))

    def _check_move(self, held: Held, request: MoveInterval) -> None:
        package = self.workers[request.worker][0]
        assert package in ("", held.code), "it cannot run there"
        bound = {one for one, _ in self.workers.values()}
        if held.code in bound and self.workers[held.owner][0] != held.code:
            return
        loads, cost = self.loads(), sum(self.keys_of(held).values())
        before = max(loads[held.owner], loads[request.worker])
        after = max(loads[held.owner] - cost, loads[request.worker] + cost)
        assert after < before, "a move lowers the larger of the two loads"

    def run(self, balancer: Balancer, rounds: int, every: int = seconds(10)) -> int:
        """Let the balancer decide ``rounds`` times. Returns the number of requests."""
        before = len(self.done)
        for _ in range(rounds):
            self.now = Timestamp(self.now + every)
            for request in balancer.decide(self.view(), self.now):
                self.apply(request)
                balancer.ended(request, self.now)
        return len(self.done) - before

    def settle(self, balancer: Balancer, most: int = 3_000) -> None:
        """Run until there has been no request for many rounds."""
        for _ in range(most // 40):
            if self.run(balancer, 40) == 0:
                return
        raise AssertionError(f"it does not settle: {self.done[-6:]}")


COSTS = st.one_of(st.floats(0.0, 0.02), st.floats(0.0, 0.3), st.floats(0.5, 1.5))
KEYS = st.binary(min_size=1, max_size=2)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    packages = draw(st.lists(st.sampled_from(["", "", "x"]), min_size=1, max_size=5))
    if "" not in packages:
        packages[0] = ""
    workers = {f"w{index}": (package, draw(st.floats(0, 0.3))) for index, package in enumerate(packages)}
    codes = {"a.1": "x", "b.2": "y"}
    costs = {name: draw(st.dictionaries(KEYS, COSTS, max_size=40)) for name in codes}
    cluster = Cluster(workers, costs)
    for name, code in codes.items():
        fit = [worker for worker, (package, _) in workers.items() if package in ("", code)]
        points = sorted(draw(st.sets(KEYS, max_size=6)))
        for start, end in zip([b"", *points], [*points, None], strict=True):
            cluster.add(Held(IncarnationId(name), KeyInterval(start, end), draw(st.sampled_from(fit)), code))
    return cluster


@pytest.mark.paper(section="7.1")
@settings(max_examples=120)
@given(clusters(), st.sampled_from([LIMITS, QUICK]))
def test_from_any_load_it_settles_and_leaves_nothing_to_be_done(cluster: Cluster, limits: BalanceSettings) -> None:
    balancer = Balancer(limits)
    cluster.settle(balancer)
    assert cluster.run(Balancer(limits), 80) == 0, "another master finds the same at rest"
    before = len(cluster.done)
    assert cluster.run(balancer, 100, minutes(10)) == 0, f"it began again: {cluster.done[before:]}"
    for name in cluster.costs:
        check_coverage(name, sorted(held.keys for held in cluster.held.values() if held.incarnation == name))
    hot = {key.journal for key in balancer.hot_keys}
    several = sum(package == "" for package, _ in cluster.workers.values()) > 1
    for journal, held in cluster.held.items():
        cost = sum(cluster.keys_of(held).values())
        if cost >= max(limits.split_busy, 0.8) and several and held.code == "y":
            assert journal in hot, "what stays too busy is named"


@settings(max_examples=60)
@given(
    st.integers(2, 5),
    st.dictionaries(KEYS, st.floats(0.005, 0.05), min_size=30, max_size=60),
)
def test_many_small_keys_end_up_close_to_even(count: int, costs: dict[bytes, float]) -> None:
    cluster = Cluster({f"w{index}": ("", 0.0) for index in range(count)}, {"a.1": costs})
    cluster.add(Held(IncarnationId("a.1"), ALL_KEYS, "w0", "x"))
    cluster.settle(Balancer(QUICK))
    loads = cluster.loads().values()
    assert max(loads) - min(loads) <= max(LIMITS.imbalance, LIMITS.split_busy)


def busy(cluster: Cluster, **more: float) -> Balancer:
    balancer = Balancer(QUICK)
    cluster.settle(balancer)
    return balancer


@pytest.mark.paper(section="8.4")
def test_a_hot_interval_is_split_by_load_and_one_half_moves() -> None:
    cluster = Cluster({"w1": ("", 0.0), "w2": ("", 0.0)}, {"a.1": {b"a": 0.3, b"b": 0.1, b"c": 0.2, b"d": 0.2}})
    cluster.add(Held(IncarnationId("a.1"), ALL_KEYS, "w1", "x"))
    busy(cluster)
    assert isinstance(cluster.done[0], SplitInterval)
    assert cluster.done[0].at == b"c"
    assert isinstance(cluster.done[1], MoveInterval)
    assert sorted(round(load, 3) for load in cluster.loads().values()) == [0.4, 0.4]


@pytest.mark.paper(section="8.4")
def test_a_key_too_hot_to_split_is_named_and_left_alone() -> None:
    cluster = Cluster({"w1": ("", 0.0), "w2": ("", 0.0)}, {"a.1": {b"a": 0.1, b"hot": 0.9, b"z": 0.1}})
    cluster.add(Held(IncarnationId("a.1"), ALL_KEYS, "w1", "x"))
    balancer = busy(cluster)
    (hot,) = balancer.hot_keys
    assert (hot.key, hot.incarnation) == (b"hot", "a.1")
    assert 0.85 <= hot.busy <= 1.1
    alone = [held for held in cluster.held.values() if b"hot" in held.keys]
    assert alone[0].owner not in {held.owner for held in cluster.held.values() if held is not alone[0]}


def test_with_one_worker_a_busy_interval_stays_whole() -> None:
    cluster = Cluster({"w1": ("", 0.0)}, {"a.1": {b"a": 0.5, b"b": 0.5}})
    cluster.add(Held(IncarnationId("a.1"), ALL_KEYS, "w1", "x"))
    busy(cluster)
    assert cluster.done == []


def test_a_new_worker_gets_its_part_by_moves_alone() -> None:
    cluster = Cluster({"w1": ("", 0.0)}, {"a.1": {bytes([index]): 0.02 for index in range(1, 41)}})
    for index in range(40):
        end = bytes([index + 2]) if index < 39 else None
        cluster.add(Held(IncarnationId("a.1"), KeyInterval(bytes([index + 1]) if index else b"", end), "w1", "x"))
    balancer = Balancer(replace(LIMITS, cold_for=minutes(10_000)))
    cluster.run(balancer, 10)
    cluster.workers["w2"] = ("", 0.0)
    cluster.settle(balancer)
    assert {type(request) for request in cluster.done} == {MoveInterval}
    assert max(cluster.loads().values()) - min(cluster.loads().values()) <= LIMITS.balanced + 0.02
    assert len({request.interval.journal for request in cluster.done}) == len(cluster.done), "nothing moves twice"


@pytest.mark.paper(section="8.4")
def test_an_interval_that_fits_into_its_cache_is_not_large() -> None:
    """A split for its size would empty the cache, and each key would read its row. So would a merge."""
    assert LIMITS.for_cache(256 << 20) == LIMITS, "the usual cache"
    wide = LIMITS.for_cache(2 << 30)
    assert wide.split_bytes == 4 << 30
    assert wide.split_keys == 8 * LIMITS.split_keys
    assert wide.split_bytes * wide.merge_part == LIMITS.split_bytes / 4


def test_a_small_imbalance_stays_and_a_large_one_is_corrected() -> None:
    for apart, moves in ((0.2, False), (0.3, True)):
        cluster = Cluster({"w1": ("", 0.1 + apart), "w2": ("", 0.1)}, {"a.1": {b"a": 0.05, b"b": 0.05, b"c": 0.05}})
        for start, end in ((b"", b"b"), (b"b", b"c"), (b"c", None)):
            cluster.add(Held(IncarnationId("a.1"), KeyInterval(start, end), "w1", "x"))
        cluster.workers["w1"] = ("", cluster.workers["w1"][1] - 0.15)
        cluster.settle(Balancer(replace(QUICK, merge_busy=0.0)))
        assert bool(cluster.done) is moves
        assert not moves or max(cluster.loads().values()) - min(cluster.loads().values()) <= LIMITS.balanced


def test_cold_neighbours_merge_but_not_below_a_minimum() -> None:
    def cold() -> Cluster:
        cluster = Cluster({"w1": ("", 0.0), "w2": ("", 0.0)}, {"a.1": {}})
        for index, (start, end) in enumerate(((b"", b"b"), (b"b", b"c"), (b"c", b"d"), (b"d", None))):
            cluster.add(Held(IncarnationId("a.1"), KeyInterval(start, end), f"w{index % 2 + 1}", "x"))
        return cluster

    cluster = cold()
    balancer = Balancer(LIMITS, fewest_intervals=2)
    assert cluster.run(balancer, 30) == 0, "they rest, and then they must have been cold for long"
    cluster.settle(balancer)
    assert {type(request) for request in cluster.done} == {MergeIntervals}
    assert len(cluster.held) == 2
    untouched = cold()
    made = [replace(one, by_operator=True) for one in untouched.view().intervals]
    view = ClusterView(untouched.view().workers, tuple(made))
    patient = Balancer(QUICK)
    assert [patient.decide(view, Timestamp(minutes(at))) for at in range(20)] == [[]] * 20


def test_intervals_go_to_workers_bound_to_their_code_if_any() -> None:
    cluster = Cluster({"any": ("", 0.0)}, {"a.1": {}, "b.2": {}})
    cluster.add(Held(IncarnationId("a.1"), ALL_KEYS, "any", "x"))
    cluster.add(Held(IncarnationId("b.2"), ALL_KEYS, "any", "y"))
    balancer = Balancer(QUICK)
    assert cluster.run(balancer, 5) == 0
    cluster.workers["bound"] = ("x", 0.5)
    cluster.settle(balancer)
    assert {held.incarnation: held.owner for held in cluster.held.values()} == {"a.1": "bound", "b.2": "any"}


def test_no_more_is_under_way_than_may_be_and_nothing_twice() -> None:
    cluster = Cluster({"w1": ("", 0.0), "w2": ("", 0.0)}, {"a.1": {bytes([one]): 0.1 for one in range(1, 9)}})
    for one in range(8):
        end = bytes([one + 2]) if one < 7 else None
        cluster.add(Held(IncarnationId("a.1"), KeyInterval(bytes([one + 1]) if one else b"", end), "w1", "x"))
    balancer = Balancer(replace(QUICK, most_operations=2))
    begun = balancer.decide(cluster.view(), Timestamp(0))
    assert len({request.interval.journal for request in begun}) == 2
    assert balancer.decide(cluster.view(), Timestamp(1)) == []
    balancer.ended(begun[0], Timestamp(2))
    (third,) = balancer.decide(cluster.view(), Timestamp(3))
    assert third.interval.journal != begun[1].interval.journal


def test_what_was_refused_is_not_asked_for_again_at_once() -> None:
    cluster = Cluster({"w1": ("", 0.5), "w2": ("", 0.0)}, {"a.1": {b"a": 0.2}})
    cluster.add(Held(IncarnationId("a.1"), ALL_KEYS, "w1", "x"))
    balancer = Balancer(LIMITS)
    assert balancer.decide(cluster.view(), Timestamp(0)) == [], "it begins with a rest"
    (request,) = balancer.decide(cluster.view(), Timestamp(seconds(31)))
    balancer.ended(request, Timestamp(seconds(32)))
    assert balancer.decide(cluster.view(), Timestamp(seconds(60))) == []
    assert balancer.decide(cluster.view(), Timestamp(seconds(63))) == [request]


@pytest.mark.paper(section="8.4")
@pytest.mark.parametrize(
    ("records", "slow", "is_hot"), [(100.0, 0.0, True), (2.3, 0.0, True), (0.3, 0.0, False), (100.0, 0.6, False)]
)
def test_neither_few_records_nor_a_slow_hook_make_a_key_hot(records: float, slow: float, is_hot: bool) -> None:
    cluster = Cluster({"w1": ("", 0.0), "w2": ("", 0.0)}, {"a.1": {b"hot": 0.9}})
    cluster.add(Held(IncarnationId("a.1"), ALL_KEYS, "w1", "x"))
    seen = cluster.view()
    balancer = Balancer(QUICK)
    intervals = tuple(replace(one, records=records, slow=slow) for one in seen.intervals)
    balancer.decide(replace(seen, intervals=intervals), Timestamp(0))
    assert [hot.key for hot in balancer.hot_keys] == ([b"hot"] if is_hot else [])


@pytest.mark.paper(section="8.4")
@pytest.mark.parametrize(
    ("busy", "growth", "is_hot"),
    [
        (0.9, None, True),
        (0.7, None, False),
        (0.7, 0.2, True),
        (0.9, -0.2, False),
        (0.9, -0.022, True),
        (0.4, 0.2, False),
    ],
    ids=["it is busy", "it has time left", "its backlog grows", "it catches up", "in hours", "others take the time"],
)
def test_an_only_key_is_hot_if_its_interval_is_behind(busy: float, growth: float | None, is_hot: bool) -> None:
    """Regression: an interval's only key has all of its records. It was called hot while a backlog was worked off."""
    cluster = Cluster({"w1": ("", 0.0), "w2": ("", 0.0)}, {"a.1": {b"kale": busy}})
    cluster.add(Held(IncarnationId("a.1"), ALL_KEYS, "w1", "x"))
    seen = cluster.view()
    backlog = None if growth is None else Pace(90.0, 10.0, growth)
    balancer = Balancer(QUICK)
    intervals = tuple(replace(one, backlog=backlog) for one in seen.intervals)
    balancer.decide(replace(seen, intervals=intervals), Timestamp(0))
    assert [hot.key for hot in balancer.hot_keys] == ([b"kale"] if is_hot else [])


def test_turned_off_it_decides_nothing_but_still_names_hot_keys() -> None:
    cluster = Cluster({"w1": ("", 0.0), "w2": ("", 0.0)}, {"a.1": {b"hot": 0.9}})
    cluster.add(Held(IncarnationId("a.1"), ALL_KEYS, "w1", "x"))
    balancer = Balancer(replace(QUICK, on=False))
    assert cluster.run(balancer, 20) == 0
    assert [hot.key for hot in balancer.hot_keys] == [b"hot"]


@pytest.mark.parametrize(
    ("wrong", "part"),
    [
        ({"balanced": 0.5}, "up to imbalance"),
        ({"smallest_side": 0.6}, "up to 0.5"),
        ({"merge_busy": 0.05}, "merged again"),
        ({"most_operations": 0}, "1 at least"),
        ({"split_keys": 0}, "1 at least"),
    ],
)
def test_limits_that_would_make_it_swing_are_refused(wrong: dict[str, float], part: str) -> None:
    with pytest.raises(ValueError, match=part):
        replace(LIMITS, **wrong)  # type: ignore[arg-type]
