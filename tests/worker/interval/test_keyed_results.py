"""Results of windows for a computation with other keys: one run, cut by the intervals there (4.2, 6.1; G1, G15)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.sdk.effects import ProducedColumns, each_target
from millwheel.sdk.scope import route_of_all
from millwheel.worker.dedup import PositionIds
from millwheel.worker.interval.commits.result_runs import runs_of
from millwheel.worker.interval.entry import IntervalEntry, decode_entry, encode
from millwheel.worker.interval.outbox.outbox import Outbox
from millwheel.worker.messages import CheckSequence, Delivery, SendDelivery, SequenceChecked
from tests.worker.interval.column_windows import Results, driver_of, opened, panes
from tests.worker.interval.driver import IntervalDriver
from tests.worker.interval.reads import CONSUMERS, locate

KEYS = [f"k{number:02}" for number in range(12)]
FIRST = 1 << 24

keys = st.binary(max_size=2)
made_together = st.builds(
    lambda at, some: ProducedColumns(
        "s", at, [b"p"] * len(some), [value for _, value in some],
        ((CONSUMERS[0], [key for key, _ in some]), (CONSUMERS[1], b"")),
    ),
    st.integers(0, 3),
    st.lists(st.tuples(keys, st.binary(max_size=9)), min_size=1, max_size=20),
)  # fmt: skip


@pytest.mark.guarantee("G15", section="6.1.1")
@given(
    st.lists(made_together, min_size=1, max_size=4),
    st.lists(keys, max_size=3, unique=True).map(sorted),
    st.frozensets(st.integers(0, 3), max_size=2),
)
def test_keyed_results_reach_the_intervals_of_their_rows(
    made: list[ProducedColumns], cuts: list[bytes], missing: frozenset[int]
) -> None:
    """Each in its order. A whole delivery leaves out nothing that is due to its interval (G1)."""
    runs, rest = runs_of(made, FIRST)
    singly = [
        (one.timestamp, row)
        for one in made
        for row in zip(one.values, each_target(one.targets, len(one.values)), strict=False)
    ]
    rows: list[Any] = [
        (FIRST + at, b"p", "s", value, stamp, targets, b"") for at, (stamp, (value, targets)) in enumerate(singly)
    ]
    if rest:
        assert (len(rows) < 8, rest) == (True, made)
        return
    entry = IntervalEntry(4, 0, 0, [], [], [], [], [], [], [], (0,), runs=runs)
    assert decode_entry(encode(entry), "it").productions == rows

    where = locate(cuts, missing)
    found: dict[Any, list[Any]] = {}
    for one in Outbox(where).add([], runs=runs):
        found.setdefault((one.consumer, one.journal), []).extend(Outbox.rows_of(one))
        assert one.complete
        assert all(low < high for low, high in pairwise(one.positions))
    expected: dict[Any, list[Any]] = {}
    for row in rows:
        for name, key in row[5]:
            expected.setdefault((name, where(name, key)), []).append((*row[:5], ((name, key),), row[6]))
    assert found == expected


def keyed(*, columns: bool = True, entries: IntervalDriver | None = None, broken: str = "none") -> IntervalDriver:
    """Counts of windows. Their consumer has the last letter of a result's key as its key. ``broken``: it has none."""

    def key(value: str) -> bytes:
        if value.startswith(broken):
            raise ValueError("no key")
        return value[2:3].encode()

    driver = driver_of(Results()) if entries is None else opened(entries)
    object.__setattr__(driver.state.config, "result_columns", columns)
    binding = driver.state.scope.outputs["out"]
    binding.route = lambda value: ((CONSUMERS[0], key(value)),)
    binding.route_all = route_of_all([(CONSUMERS[0], key)])
    if entries is None:
        driver.deliver(*((each, "", at) for at in (1, 11) for each in KEYS))
        driver.commit()
        driver.watermark(20)
        driver.commit()
    return driver


def sent(driver: IntervalDriver) -> list[tuple[Any, ...]]:
    """Positions, keys, values and times of what is sent."""
    found: list[tuple[Any, ...]] = []
    for one in driver.take(SendDelivery):
        ids = one.delivery.ids
        assert isinstance(ids, PositionIds)
        found += zip(ids.positions, one.delivery.keys, one.delivery.values, one.delivery.timestamps, strict=True)
    return found


def stored(driver: IntervalDriver) -> tuple[list[int], int]:
    """The lengths of the runs in the last entry, and its number of rows."""
    entry = msgspec.msgpack.decode(driver.entries[-1], type=IntervalEntry)
    return [len(run.values) for run in entry.runs], len(entry.productions)


@pytest.mark.guarantee("G12", section="6.2")
@pytest.mark.parametrize("columns", [True, False])
def test_a_successor_sends_keyed_results_again(columns: bool) -> None:
    """As rows, at the same positions and with the same keys. Before their format, they are rows in the entry."""
    driver = keyed(columns=columns)
    assert stored(driver) == (([24], 0) if columns else ([], 24))
    rows = sent(driver)
    assert [(key, msgspec.msgpack.decode(value), at) for _, key, value, at in rows] == [
        (each[2:].encode(), f"{each} {end - 10}-{end} 1", end) for end in (10, 20) for each in KEYS
    ]
    assert sent(keyed(entries=driver)) == rows


@pytest.mark.guarantee("G1", section="4.2")
def test_a_result_without_a_key_leaves_the_others_together() -> None:
    driver = keyed(broken="k05")
    assert stored(driver) == ([22], 0)
    assert not any(b"k05" in value for _, _, value, _ in sent(driver))
    assert list(driver.state.blocked.keys) == [b"k05"]


@pytest.mark.guarantee("G1", section="4.2")
def test_results_for_a_new_consumer_are_no_part_of_the_run() -> None:
    """A run has one list of consumers. What was made for others is behind it."""
    before = ProducedColumns("s", 5, [b"p"] * 8, [b"v"] * 8, ((CONSUMERS[0], [b"k"] * 8),))
    after = ProducedColumns("s", 5, [b"q"] * 8, [b"w"] * 8, ((CONSUMERS[0], [b"k"] * 8), (CONSUMERS[1], [b"l"] * 8)))
    (run,), rest = runs_of([before, after], FIRST)
    assert (run.values, run.targets, rest) == ([b"v"] * 8, ((CONSUMERS[0], b"k"),), [after])


@pytest.mark.guarantee("G1", section="6.1.1")
def test_windows_take_keyed_results_at_once_and_only_once() -> None:
    """The consumer remembers their positions as one range, and judges a copy by it."""
    second = driver_of(Results())
    (sends,) = keyed().take(SendDelivery)
    for _ in range(2):
        one = sends.delivery
        second.handle(
            Delivery(
                second.state.config.incarnation, "test.1.j1", "in", one.sender, one.ids, list(one.keys),
                list(one.values), list(one.timestamps), one.token,
            )
        )  # fmt: skip
        for check in second.take(CheckSequence):
            second.handle(SequenceChecked(check.sequence, True))
        second.commit_all()
    counts = {"0": 2, "1": 2} | dict.fromkeys("23456789", 1)
    assert panes(second) == {(key, end): count for end in (20, 30) for key, count in counts.items()}
    assert not second.state.cells
    assert isinstance(one.ids, PositionIds)
    assert one.ids.complete
