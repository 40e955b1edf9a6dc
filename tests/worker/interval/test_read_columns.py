"""What a source has read stays together: one run, cut by the intervals of its keys (5.2, 6.1; G1, G2, G15)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.model.incarnation import IncarnationId
from millwheel.sdk.context import Context
from millwheel.sdk.effects import ProducedRead, Production
from millwheel.store.contract import CorruptValueError
from millwheel.worker.dedup import OpaqueIds, PositionIds
from millwheel.worker.interval.commits import commits
from millwheel.worker.interval.commits.read_runs import runs_of_reads
from millwheel.worker.interval.commits.sealing import Sealed, Sealer
from millwheel.worker.interval.entry import IntervalEntry, ProductionRow, ProductionRun, decode_entry, encode
from millwheel.worker.interval.hooks.runner import HookBatch
from millwheel.worker.interval.outbox import outbox as outboxes
from millwheel.worker.interval.outbox.batch_division import parts_of, places_by_journal
from millwheel.worker.interval.outbox.flows import ProductionBatch
from millwheel.worker.interval.outbox.outbox import Outbox
from millwheel.worker.messages import Acknowledged, Delivery, SendDelivery
from tests.worker.interval.driver import IntervalDriver
from tests.worker.interval.reads import CONSUMERS, TIMES, ReadsAtOnce, keyed_by_end, locate

LOG = IncarnationId("log.1")
FIRST = 1 << 24


def read_of(*records: tuple[bytes, bytes, int], consumers: int = 1, log: bool = False) -> ProducedRead:
    """A read of (key, value, time) records. A second consumer has the keys backwards."""
    keys = [key for key, _, _ in records], [key[::-1] for key, _, _ in records]
    targets: list[Any] = list(zip(CONSUMERS[:consumers], keys, strict=False))
    if log:
        targets.append((LOG, b""))
    return ProducedRead("s", [value for _, value, _ in records], [at for _, _, at in records], tuple(targets))


def of_splits(*reads: ProducedRead) -> list[tuple[bytes, ProducedRead]]:
    return [(b"split-%d" % number, read) for number, read in enumerate(reads)]


keys = st.binary(max_size=2)
records = st.lists(st.tuples(keys, st.binary(max_size=9), st.integers(-5, 5)), min_size=1, max_size=20)
reads = st.lists(
    st.builds(
        lambda some, count, log: read_of(*some, consumers=count, log=log), records, st.integers(0, 2), st.booleans()
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.guarantee("G2", section="6.1.2")
@given(reads)
def test_runs_have_what_each_split_produced_in_its_order(made: list[ProducedRead]) -> None:
    runs = runs_of_reads(of_splits(*made), FIRST)
    rows = [row for run in runs for row in run.rows()]
    assert [row[0] for row in rows] == list(range(FIRST, FIRST + len(rows)))
    one_by_one = [(key, one) for key, read in of_splits(*made) for one in read.productions()]
    assert [(key, one.stream, one.value, one.timestamp, one.targets) for key, one in one_by_one] == [
        row[1:6] for row in rows
    ]
    entry = IntervalEntry(4, 0, 0, [], [], [], [], [], [], [], (0,), runs=runs)
    assert decode_entry(encode(entry), "it").productions == rows


@pytest.mark.guarantee("G15", section="6.1.1")
@given(reads, st.lists(keys, max_size=3, unique=True).map(sorted), st.frozensets(st.integers(0, 3), max_size=2))
def test_runs_reach_the_intervals_that_their_rows_reach(
    made: list[ProducedRead], cuts: list[bytes], missing: frozenset[int]
) -> None:
    def sent(rows: list[ProductionRow], runs: list[ProductionRun]) -> tuple[dict[Any, list[Any]], Outbox]:
        outbox = Outbox(locate(cuts, missing))
        found: dict[Any, list[Any]] = {}
        for one in outbox.add(rows, runs=runs):
            found.setdefault((one.consumer, one.journal), []).extend(outbox.rows_of(one))
            assert one.bytes == sum(map(len, one.keys)) + sum(map(len, one.values))
            assert all(low < high for low, high in pairwise(one.positions))
        return found, outbox

    runs = runs_of_reads(of_splits(*made), FIRST)
    together, outbox = sent([], runs)
    assert together == sent([row for run in runs for row in run.rows()], [])[0]
    assert outbox.unacked.records == sum(map(len, together.values()))


@pytest.mark.guarantee("G1", section="6.1.1")
@given(reads, st.lists(keys, max_size=3, unique=True).map(sorted))
def test_a_complete_batch_leaves_out_no_record_of_its_interval(made: list[ProducedRead], cuts: list[bytes]) -> None:
    """So a receiver may remember the positions between as one range."""
    runs = runs_of_reads(of_splits(*made), FIRST)
    rows = [row for run in runs for row in run.rows()]
    where = locate(cuts)
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(outboxes, "MAX_BATCH_RECORDS", 7)
        for one in Outbox(where).add([], runs=runs):
            assert one.complete
            between = range(one.positions[0], one.positions[-1] + 1)
            due = [
                row[0] for row in rows for name, key in row[5]
                if row[0] in between and name == one.consumer and where(name, key) == one.journal
            ]  # fmt: skip
            assert list(one.positions) == due


def batches(cuts: list[bytes]) -> tuple[Outbox, list[ProductionBatch]]:
    """What is sent of a read whose keys alternate between two intervals, and its outbox."""
    outbox = Outbox(lambda consumer, key: locate(cuts)(consumer, key))
    read = read_of(*((key, b"v%d" % at, at) for at, key in enumerate((b"a", b"y", b"a", b"z") * 2)))
    outbox.add([], runs=runs_of_reads(of_splits(read), FIRST))
    return outbox, [one for one, _ in outbox.take_ready()]


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_part_that_is_sent_again_is_not_complete() -> None:
    outbox, (low, high) = batches([b"m"])
    assert [list(low.positions), low.complete] == [[FIRST + at for at in (0, 2, 4, 6)], True]
    outbox.acknowledged(low.token, [1, 2])
    outbox.flows.begin_all()
    again = {one.journal: one for one, _ in outbox.take_ready()}
    part, rest = again[low.journal], again[high.journal]
    assert (list(part.positions), part.complete) == ([FIRST + 2, FIRST + 4], False)
    assert (list(rest.positions), rest.complete) == ([FIRST + at for at in (1, 3, 5, 7)], True)


@pytest.mark.guarantee("G15", section="6.1.1")
def test_what_is_unsent_follows_a_split_of_its_interval() -> None:
    cuts = [b"m"]
    outbox, _ = batches(cuts)
    cuts[:] = [b"m", b"n", b"z"]
    outbox.flows.begin_all()
    again = {one.journal: (one.values, one.complete) for one, _ in outbox.take_ready()}
    assert again == {
        "c.1.j0": ([b"v0", b"v2", b"v4", b"v6"], True),
        "c.1.j2": ([b"v1", b"v5"], False),
        "c.1.j3": ([b"v3", b"v7"], False),
    }


@pytest.mark.parametrize(
    "columns",
    [
        {"targets": ((LOG, b""), (CONSUMERS[0], [b"k"]))},
        {"producers": [(3, b"p")]},
        {"producers": [b"p", (0, b"p"), b"p"]},
        {"times": [1]},
        {"times": [(1 << 60, 5)]},
    ],
)
def test_a_read_whose_columns_disagree_is_refused(columns: dict[str, Any]) -> None:
    whole: dict[str, Any] = {"targets": ((LOG, b""),), "producers": [(2, b"p")], "times": [1, 2], **columns}
    run = ProductionRun(FIRST, "s", whole["targets"], whole["producers"], [b"1", b"2"], whole["times"])
    entry = IntervalEntry(4, 0, 0, [], [], [], [], [], [], [], (0,), runs=[run])
    with pytest.raises(CorruptValueError, match="run of productions"):
        decode_entry(encode(entry), "it")


def test_a_base_is_due_after_as_many_bytes_as_rows_have() -> None:
    """A takeover makes rows of a run."""
    read = read_of(*((b"key-%d" % at, b"a value", 1_700_000_000_000_000) for at in range(50)), log=True)
    (run,) = runs_of_reads(of_splits(read), FIRST)
    assert 0.8 < (len(encode(run)) + run.spared) / len(encode(list(run.rows()))) < 1.3


@given(st.lists(st.tuples(keys, st.binary(max_size=9)), max_size=30), st.integers(1, 9), st.integers(1, 40))
def test_parts_end_where_a_batch_is_full(made: list[tuple[bytes, bytes]], most: int, size: int) -> None:
    expected: list[tuple[slice, int]] = []
    first = held = 0
    for at, (key, value) in enumerate(made):
        held += len(key) + len(value)
        if at + 1 - first == most or held >= size or at + 1 == len(made):
            expected.append((slice(first, at + 1), held))
            first, held = at + 1, 0
    assert list(parts_of([key for key, _ in made], [value for _, value in made], most, size)) == expected


def test_keys_of_one_interval_are_not_looked_up_one_by_one() -> None:
    asked: list[bytes] = []

    def journal(key: bytes) -> str:
        asked.append(key)
        return "j"

    assert places_by_journal(journal, [b"%d" % at for at in range(1_000)]) == [("j", None)]
    assert len(asked) == 2


def reading(
    *, columns: bool = True, entries: list[bytes] | None = None, strong: bool = True, cuts: tuple[bytes, ...] = ()
) -> IntervalDriver:
    driver = keyed_by_end(IntervalDriver(ReadsAtOnce(), entries=entries, strong=strong, locate=locate([*cuts])))
    object.__setattr__(driver.state.config, "result_columns", columns)
    return driver


def deliveries(driver: IntervalDriver) -> list[tuple[Any, ...]]:
    """What is sent: stream, keys, values, times and positions."""
    sent = [one.delivery for one in driver.take(SendDelivery)]
    assert all(isinstance(one.ids, PositionIds) for one in sent)
    return [
        (one.stream, list(one.keys), list(one.values), list(one.timestamps), list(one.ids.positions))  # type: ignore[union-attr]
        for one in sent
    ]


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.guarantee("G12", section="6.2")
@pytest.mark.parametrize("columns", [True, False])
def test_a_successor_sends_what_was_read_and_what_is_behind_it(columns: bool) -> None:
    driver = reading(columns=columns)
    driver.deliver(("p", "x", 5), ("q", "w", 5))
    driver.commit()
    entry = msgspec.msgpack.decode(driver.entries[0], type=IntervalEntry)
    assert ([len(run.values) for run in entry.runs], len(entry.productions)) == (([8], 2) if columns else ([], 10))
    sent = deliveries(driver)
    by_stream = {stream: sorted(zip(*rest, strict=True)) for stream, *rest in sent}
    successor = {
        stream: sorted(zip(*rest, strict=True)) for stream, *rest in deliveries(reading(entries=driver.entries))
    }
    assert by_stream == successor
    assert [value for _, value, _, _ in sorted(by_stream["out"], key=lambda one: one[3])] == [
        msgspec.msgpack.encode(f"{what}-{key}") for what in "xw" for key in "ayaz"
    ]
    positions = [one[3] for stream in by_stream.values() for one in stream]
    assert sorted(positions) == list(range(FIRST, FIRST + 10))


@pytest.mark.guarantee("G15", section="6.1.1")
@pytest.mark.parametrize("columns", [True, False])
def test_a_second_read_of_a_commit_comes_behind_the_first(columns: bool) -> None:
    driver = reading(columns=columns)
    driver.deliver(("p", "x", 5), ("p", "w", 5))
    driver.commit()
    sent: dict[int, tuple[str, bytes]] = {}
    for stream, _, values, _, positions in deliveries(driver):
        sent.update(zip(positions, ((stream, value) for value in values), strict=True))
    made = [f"{what}{end}" for what in "xw" for end in ("-a", "-y", "-a", "-z", "")]
    assert [sent[at][1] for at in sorted(sent)] == [msgspec.msgpack.encode(one) for one in made]


@pytest.mark.guarantee("G10", section="6.1.3")
def test_weak_reads_have_ids_of_their_own() -> None:
    driver = reading(strong=False)
    driver.deliver(("p", "x", 5))
    sent = [one.delivery for one in driver.take(SendDelivery)]
    assert all(isinstance(one.ids, OpaqueIds) for one in sent)
    ids = [each for one in sent for each in one.ids.ids]  # type: ignore[union-attr]
    assert (len(ids), len(set(ids))) == (5, 5)


def sent_of(driver: IntervalDriver) -> dict[str, tuple[Delivery, bool]]:
    """What a read sends, by journal, and whether it is stated as complete. All but what "c.1.j0" gets is ACKed."""
    driver.deliver(("p", "x", 5))
    driver.commit()
    found: dict[str, tuple[Delivery, bool]] = {}
    for send in driver.take(SendDelivery):
        delivery = send.delivery
        assert isinstance(delivery.ids, PositionIds)
        found[delivery.journal] = delivery, delivery.ids.complete
        if delivery.journal != "c.1.j0":
            driver.handle(Acknowledged(delivery.token))
    return found


@pytest.mark.guarantee("G13", section="6.1.1")
def test_reads_have_no_gapped_ranges_while_a_mark_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each split of a receiver would add a piece until the mark moves, and each piece would have all later ranges."""
    monkeypatch.setattr(commits, "STUCK_AFTER_COMMITS", 5)
    monkeypatch.setattr(outboxes, "MAX_STUCK_RECORDS", 5)
    driver = reading(cuts=(b"m",))
    rounds = [sent_of(driver) for _ in range(11)]
    # From the ninth commit on, six records have waited for more than five commits.
    for journal in ("c.1.j0", "c.1.j1"):
        assert [one[journal][1] for one in rounds] == [True] * 8 + [False] * 3
    positions = rounds[-1]["c.1.j0"][0].ids.positions  # type: ignore[union-attr]
    assert list(positions) == [(11 << 24) + at for at in (0, 2)], "those between are due to another interval"
    for one in rounds:
        driver.handle(Acknowledged(one["c.1.j0"][0].token))
    assert [complete for _, complete in sent_of(driver).values()] == [True, True, False], "the mark moves once more"


@pytest.mark.guarantee("G13", section="6.1.1")
def test_a_range_without_gaps_is_stated_while_a_mark_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "STUCK_AFTER_COMMITS", 5)
    monkeypatch.setattr(outboxes, "MAX_STUCK_RECORDS", 5)
    driver = reading()
    assert [sent_of(driver)["c.1.j0"][1] for _ in range(9)] == [True] * 9


@pytest.mark.guarantee("G1", section="6.1.2")
def test_a_read_beside_results_of_panes_is_stored_as_rows() -> None:
    """No computation has both today. The runs are those of the results then, and the read is not in them."""
    driver = reading()
    cell = driver.state.cells.get(b"p")
    assert cell is not None
    batch = HookBatch()
    context: Context[Any] = Context(b"p", cell, driver.state.scope)
    batch.contexts[b"p"] = context
    assert context._produce_all(driver.state.scope.outputs["out"], list("ayaz"), TIMES, 1_000)  # noqa: SLF001  # as readers do
    batch.results += [(b"k%d" % at, [Production("other", b"%d" % at, 9, ((LOG, b""),))]) for at in range(8)]
    failed: list[Exception] = []
    entry, outbound = Sealer(driver.state, lambda key, error: failed.append(error)).apply(Sealed(1, True), batch, [])
    assert ([len(run.values) for run in entry.runs], failed) == ([8], [])
    expected = [b"%d" % at for at in range(8)] + [msgspec.msgpack.encode(one) for one in "ayaz"]
    assert [row[3] for row in decode_entry(encode(entry), "it").productions] == expected
    assert sorted(value for one in outbound for value in one.values) == sorted(expected)
