"""The results of a window stay together: one run in the entry, and one delivery (4.6, 6.1.1, 6.2; G1, G2, G12, G15)."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.model.incarnation import IncarnationId
from millwheel.sdk.effects import ProducedColumns, Production, Targets
from millwheel.sdk.scope import FixedRoute, OutputBinding, route_of_all
from millwheel.store.contract import CorruptValueError
from millwheel.worker.dedup import PositionIds
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.interval.commits.result_runs import runs_of
from millwheel.worker.interval.entry import IntervalEntry, ProductionRun, decode_entry, encode
from millwheel.worker.interval.outbox import flows
from millwheel.worker.interval.outbox import outbox as outboxes
from millwheel.worker.interval.outbox.flows import INDEX_BITS
from millwheel.worker.interval.outbox.outbox import Outbox
from millwheel.worker.messages import Acknowledged, Delivery, Resend, SendDelivery
from tests.worker.interval.column_windows import Results, driver_of, opened
from tests.worker.interval.driver import IntervalDriver

LOG = (IncarnationId("log.1"), b"")
KEYS = [f"k{number:02}" for number in range(12)]


def shared_targets(targets: list[tuple[tuple[IncarnationId, bytes], ...]]) -> Targets | None:
    """The consumers of some records, as columns: what ``each_target`` takes apart. None: they have other consumers."""
    names = [name for name, _ in targets[0]]
    if any([name for name, _ in each] != names for each in targets):
        return None
    return tuple((name, [each[at][1] for each in targets]) for at, name in enumerate(names))


def fired(*broken: str, to: int = 10, results: Any = None) -> IntervalDriver:
    """Counts of windows that have ended, whose results are not sent yet."""
    driver = driver_of(results or Results(*broken))
    driver.deliver(*((key, "", at) for at in (1, 11) for key in KEYS))
    driver.commit()
    driver.watermark(to)
    return driver


def sent(driver: IntervalDriver) -> list[Delivery]:
    return [one.delivery for one in driver.take(SendDelivery)]


def stored_runs(driver: IntervalDriver) -> list[list[int]]:
    """The positions of the runs in the last entry, without the commit's number."""
    entry = msgspec.msgpack.decode(driver.entries[-1], type=IntervalEntry)
    return [[position - (len(driver.entries) << INDEX_BITS) for position in run.positions] for run in entry.runs]


@pytest.mark.guarantee("G12", section="6.2")
def test_results_are_one_run_and_one_delivery() -> None:
    driver = fired()
    driver.commit()
    (delivery,) = sent(driver)
    ids = delivery.ids
    assert isinstance(ids, PositionIds)
    assert (ids.positions, ids.complete) == (range(2 << INDEX_BITS, (2 << INDEX_BITS) + 12), True)
    assert [msgspec.msgpack.decode(value) for value in delivery.values] == [f"{key} 0-10 1" for key in KEYS]
    assert stored_runs(driver) == [list(range(12))]
    (again,) = sent(opened(driver))
    assert (again.ids, again.values, again.timestamps) == (ids, delivery.values, delivery.timestamps)


@pytest.mark.guarantee("G2", section="6.1.2")
def test_results_of_several_windows_keep_their_times_and_order() -> None:
    """One of the second window fails. So the others of it are made one by one, and are in the same run."""
    driver = fired("k03 10", to=20)
    driver.commit()
    assert stored_runs(driver) == [list(range(23))]
    made = [(f"{key} 0-10 1", 10) for key in KEYS] + [(f"{key} 10-20 1", 20) for key in KEYS if key != "k03"]
    successor = opened(driver)
    assert driver.sent() == made
    assert successor.sent() == made


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.parametrize("run", [12, 9, 8, 7, 1])
def test_what_comes_behind_a_run_has_positions_of_its_own(run: int) -> None:
    """So many results are for a log. Those behind them have another consumer, and are rows."""
    others = [((IncarnationId("c.1"), key.encode()),) for key in KEYS]
    driver = driver_of(Results())
    binding = driver.state.scope.outputs["out"]
    binding.route = lambda value: (LOG,) if value[:3] < f"k{run:02}" else others[int(value[1:3])]
    binding.route_all = None
    driver.deliver(*((key, "", 1) for key in KEYS))
    driver.commit()
    driver.watermark(10)
    driver.commit()
    assert stored_runs(driver) == ([list(range(run))] if run >= 8 else [])
    rows = decode_entry(driver.entries[-1], "it").productions
    assert [row[0] & (1 << INDEX_BITS) - 1 for row in rows] == list(range(12))
    assert [row[1].decode() for row in rows] == KEYS
    assert [row[5] for row in rows] == [(LOG,)] * run + others[run:]
    assert sum(len(one.values) for one in sent(driver)) == 12


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_part_that_is_sent_again_has_its_own_positions() -> None:
    driver = fired()
    driver.commit()
    (delivery,) = sent(driver)
    driver.handle(Acknowledged(delivery.token, [3, 5]))
    driver.handle(Resend())
    (part,) = sent(driver)
    assert isinstance(part.ids, PositionIds)
    assert (list(part.ids.positions), part.ids.complete) == ([(2 << INDEX_BITS) + at for at in (3, 5)], False)
    driver.handle(Acknowledged(part.token, []))
    assert not len(driver.state.outbox)


@pytest.mark.guarantee("G12", section="6.2")
def test_before_their_format_results_are_rows() -> None:
    driver = driver_of(Results())
    object.__setattr__(driver.state.config, "result_columns", False)
    driver.deliver(*((key, "", 1) for key in KEYS))
    driver.commit()
    driver.watermark(10)
    driver.commit()
    (delivery,) = sent(driver)
    assert isinstance(delivery.ids, PositionIds)
    assert not delivery.ids.complete
    assert (stored_runs(driver), driver.entries[-1][1]) == ([], 3)


@pytest.mark.guarantee("G13", section="6.2")
@pytest.mark.parametrize("entry_bytes", [10_000, 300])
def test_a_base_is_due_after_as_many_results_as_rows(entry_bytes: int) -> None:
    """A takeover makes a row of each result, also of those in a divided entry."""

    def counted(columns: bool) -> int:
        driver = driver_of(Results(), IntervalSettings(columns_from=1, entry_bytes=entry_bytes))
        object.__setattr__(driver.state.config, "result_columns", columns)
        driver.deliver(*((key, "", 1) for key in KEYS))
        driver.commit()
        driver.watermark(10)
        driver.commit()
        return driver.state.journal.bytes

    assert counted(True) > 0.9 * counted(False)


@pytest.mark.guarantee("G12", section="6.2")
@pytest.mark.parametrize(("more", "first"), [(-1, 256), (0, 256), (1, 257)])
def test_a_batch_ends_where_it_does_one_by_one(more: int, first: int) -> None:
    """The 256 that are made together are 91 bytes each, as they are counted. They may fill the batch exactly."""
    driver = driver_of(Results(), IntervalSettings(columns_from=1, batch_bytes=256 * 91 + more))
    driver.deliver(*((f"k{number:03}", "", 1) for number in range(300)))
    driver.commit_all()
    before = len(driver.entries)
    driver.watermark(10)
    driver.commit_all()
    made = [len(decode_entry(blob, "it").productions) for blob in driver.entries[before:]]
    assert made == [first, 300 - first]


@pytest.mark.parametrize("targets", [(), (LOG, (IncarnationId("c.1"), b"k"))])
def test_results_for_several_consumers_and_for_none(targets: Any) -> None:
    driver = driver_of(Results())
    binding = driver.state.scope.outputs["out"]
    binding.route, binding.route_all = lambda value: targets, route_of_all([], targets)
    driver.deliver(*((key, "", 1) for key in KEYS))
    driver.commit()
    driver.watermark(10)
    driver.commit()
    assert stored_runs(driver) == [list(range(12))]
    assert [(one.consumer, set(one.keys)) for one in sent(driver)] == [(name, {key}) for name, key in targets]
    assert [(one.consumer, len(one.values)) for one in sent(opened(driver))] == [(name, 12) for name, _ in targets]


class Stopping(Results):
    """As a `next` without a default does, it raises StopIteration."""

    def __call__(self, key: str, *rest: Any) -> str:
        return next(iter(())) if key in self.broken else super().__call__(key, *rest)


def stopping(value: str) -> bytes:
    """A function of a consumer's keys that raises StopIteration."""
    return next(iter(() if value.startswith("k05") else (value[:3].encode(),)))


def key_of(value: str) -> bytes:
    return value[:3].encode()


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.parametrize(
    ("results", "extract"), [(Stopping("k05"), None), (Stopping("k05"), key_of), (Results(), stopping)]
)
def test_a_result_that_stops_an_iteration_loses_none(results: Results, extract: Any) -> None:
    """``extract``: the function of the consumer's keys. None: a log has the results."""
    driver = driver_of(results)
    binding = driver.state.scope.outputs["out"]
    if extract is None:
        binding.route, binding.route_all = FixedRoute((LOG,)), route_of_all([], (LOG,))
    else:
        consumer = IncarnationId("c.1")
        binding.route = lambda value: ((consumer, extract(value)),)
        binding.route_all = route_of_all([(consumer, extract)])
    driver.deliver(*((key, "", 1) for key in KEYS))
    driver.commit()
    driver.watermark(10)
    driver.commit()
    made = [row[1].decode() for row in decode_entry(driver.entries[-1], "it").productions]
    assert made == [key for key in KEYS if key != "k05"]
    assert list(driver.state.blocked.keys) == [b"k05"]


@pytest.mark.parametrize("derived", [True, False])
def test_results_are_made_once_where_they_go_one_by_one(derived: bool) -> None:
    """A stream with derived ones needs a context for each result, so none is made for many."""
    made = Results()
    driver = driver_of(made)
    if derived:
        binding = driver.state.scope.outputs["out"]
        none = OutputBinding("none", binding.encode, lambda value: (), route_of_all([]))
        binding.derived = ((none, lambda value: ()),)
    driver.deliver(*((key, "", 1) for key in KEYS))
    driver.commit()
    driver.watermark(10)
    driver.commit()
    assert made.made == KEYS
    assert [row[1].decode() for row in decode_entry(driver.entries[-1], "it").productions] == KEYS


runs = st.lists(
    st.tuples(
        st.sampled_from("st"),
        st.sampled_from([(LOG,), (LOG, (IncarnationId("c.1"), b"key")), ()]),
        st.lists(st.tuples(st.binary(max_size=9), st.integers(0, 3)), min_size=1, max_size=20),
    ),
    max_size=4,
)


def drawn(made: list[Any]) -> list[ProductionRun]:
    starts = accumulate((len(each) for _, _, each in made), initial=1 << INDEX_BITS)
    return [
        ProductionRun(at, stream, targets, [b"p%d" % stamp for _, stamp in each], [value for value, _ in each],
                      [(1, stamp) for _, stamp in each])
        for at, (stream, targets, each) in zip(starts, made, strict=False)
    ]  # fmt: skip


@given(runs)
def test_runs_are_sent_as_their_rows_are(made: list[Any]) -> None:
    """In the same order for each consumer. A run has outbound batches of its own, which are those of its rows."""
    given_runs = drawn(made)

    def batches(rows: list[Any], of: list[ProductionRun]) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        with pytest.MonkeyPatch.context() as patches:
            for module in (outboxes, flows):
                patches.setattr(module, "MAX_BATCH_RECORDS", 7)
                patches.setattr(module, "MAX_BATCH_BYTES", 40)
            outbox = Outbox(lambda consumer, key: f"{consumer}.j")
            for one in outbox.add(rows, runs=of):
                assert len(one.keys) == 1 or (one.bytes - len(one.values[-1]) - len(one.keys[-1]) < 40)
                assert len(one.keys) <= 7
                found.setdefault(one.consumer, []).append((one.bytes, list(outbox.rows_of(one))))
            sent = sum(len(each) for several in found.values() for _, each in several)
            assert outbox.unacked.records == sent
        return found

    def in_order(found: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {consumer: [row for _, each in several for row in each] for consumer, several in found.items()}

    together = in_order(batches([], given_runs))
    singly = in_order(batches([row for run in given_runs for row in run.rows()], []))
    assert together == {consumer: sorted(each) for consumer, each in singly.items()}
    for run in given_runs:
        assert batches([], [run]) == batches(list(run.rows()), [])


@given(runs)
def test_an_entry_with_runs_reads_as_their_rows(made: list[Any]) -> None:
    given_runs = drawn(made)
    entry = IntervalEntry(4, 0, 0, [], [], [], [], [], [], [], (0,), runs=given_runs)
    rows = [row for run in given_runs for row in run.rows()]
    read = decode_entry(encode(entry), "it")
    assert (read.productions, read.runs) == (rows, [])


@pytest.mark.parametrize("times", [[], [(1, 5)], [(3, 5)], [(3, 5), (-1, 5)], [(1 << 60, 5)], [(2, 5), (0, 6)]])
def test_a_run_whose_columns_disagree_is_refused(times: list[int | tuple[int, int]]) -> None:
    entry = IntervalEntry(
        4, 0, 0, [], [], [], [], [], [], [], (0,),
        runs=[ProductionRun(1, "s", (LOG,), [b"k", b"l"], [b"1", b"2"], times)],
    )  # fmt: skip
    with pytest.raises(CorruptValueError, match="run of productions"):
        decode_entry(encode(entry), "it")


KEYED = IncarnationId("c.1")
targets_drawn = st.sampled_from([(LOG,), (LOG,), (), ((KEYED, b"a"), LOG), ((KEYED, b"b"), LOG), ((KEYED, b"a"),)])


@pytest.mark.guarantee("G2", section="6.1.2")
@given(st.lists(st.tuples(targets_drawn, st.integers(0, 2)), max_size=24), st.booleans(), st.data())
def test_a_run_does_not_depend_on_what_was_made_together(made: list[Any], alike: bool, data: st.DataObject) -> None:
    """``made``: the targets of each result, and its time. ``alike``: all have the consumers of the first one."""
    if alike:
        made = [one for one in made if [name for name, _ in one[0]] == [name for name, _ in made[0][0]]]
    targets = [each for each, _ in made]
    singly: list[Any] = [
        (b"%d" % at, [Production("s", b"v%d" % at, made[at][1], each)]) for at, each in enumerate(targets)
    ]
    mixed, at = list[Any](), 0
    while at < len(made):
        end = data.draw(st.integers(at + 1, len(made)))
        end = next((one for one in range(at, end) if made[one][1] != made[at][1]), end)
        if data.draw(st.booleans()):
            mixed += singly[at:end]
        else:
            end = next((one for one in range(at, end) if shared_targets(targets[at : one + 1]) is None), end)
            keys, values = [b"%d" % one for one in range(at, end)], [b"v%d" % one for one in range(at, end)]
            shared = shared_targets(targets[at:end])
            assert shared is not None
            mixed.append(ProducedColumns("s", made[at][1], keys, values, shared))
        at = end

    def read(results: list[Any]) -> Any:
        runs, rest = runs_of(results, 5)
        rows = [row for run in runs for row in run.rows()]
        columns = [one if isinstance(one, ProducedColumns) else None for one in rest]
        return runs, rows, sum(1 if one is None else len(one.keys) for one in columns)

    assert read(mixed) == read(singly)
    assert [row[1:6] for row in read(mixed)[1]] == [
        (key, one.stream, one.value, one.timestamp, one.targets)
        for key, (one,) in singly[: len(read(mixed)[1])]
    ]  # fmt: skip
