"""Windows by columns where hooks take part, and at their bounds (4.4, 4.6, 6.2; G1, G5, G7, G8, G13)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel import agg, windows
from millwheel.agg.aggregator import fold_of
from millwheel.model.keys import ALL_KEYS
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.store.contract import CorruptValueError
from millwheel.windows.result import Row
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.interval.entry import PANES_FORMAT, decode_entry
from millwheel.worker.interval.panes.changes import PaneChange, apply_changes, seal_changes
from millwheel.worker.interval.panes.table import PaneTable, named_form
from millwheel.worker.interval.pending import pending_work
from millwheel.worker.interval.shown_panes import keys_in, pane_timers, panes_of, with_panes
from millwheel.worker.messages import (
    Acknowledged,
    AppendEntry,
    ReadStates,
    SendDelivery,
    StatesRead,
)
from tests.worker.interval.column_windows import (
    COLUMNS,
    RETRY,
    SMALL,
    Results,
    counting,
    driver_of,
    later,
    opened,
    panes,
    read_states,
    states,
)
from tests.worker.interval.driver import IntervalDriver


@pytest.mark.guarantee("G2", section="6.2")
def test_an_entry_has_new_values_and_a_takeover_reads_them() -> None:
    driver = driver_of(Results())
    driver.deliver(("a", "", 1), ("b", "", 2), ("a", "", 11))
    driver.commit()
    driver.deliver(("a", "", 3))
    driver.commit()
    last = decode_entry(driver.entries[-1], "the entry")
    assert last.format == PANES_FORMAT
    assert not last.states
    assert not last.timers_set
    assert panes(driver) == {("a", 10): 2, ("b", 10): 1, ("a", 20): 1} == panes(opened(driver))
    driver.watermark(10)
    driver.commit()
    assert driver.sent() == [("a 0-10 2", 10), ("b 0-10 1", 10)]
    assert panes(opened(driver)) == {("a", 20): 1} == panes(driver)


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_failing_result_moves_and_the_policy_decides() -> None:
    made = Results("a")
    driver = driver_of(made, on_failure=mw.dead_letter(after=2, initial=mw.seconds(1)))
    driver.deliver(("a", "", 1), ("b", "", 1))
    driver.commit()
    driver.watermark(10)
    driver.commit()
    assert driver.sent() == [("b 0-10 1", 10)]
    assert states(driver) == {"a": {(0, 10): [-1, 1, 0]}}
    successor = opened(driver, counting(Results("a")), on_failure=RETRY)
    assert states(successor) == states(driver)
    assert panes(successor) == {}
    later(driver)
    later(driver)
    driver.commit_all()
    assert states(driver) == {}
    assert driver.state.counts.dead_letters == 1
    assert driver.output == 10


@pytest.mark.guarantee("G7", section="4.5")
def test_a_moving_pane_holds_the_watermark_until_it_is_stored() -> None:
    made = Results("a")
    driver = driver_of(made, on_failure=RETRY)
    driver.deliver(("a", "", 1))
    driver.commit()
    driver.deliver(("b", "", 25))  # its append is in flight, so the move waits
    driver.watermark(20)
    assert panes(driver) == {("b", 30): 1}
    assert driver.output == 10
    driver.commit_all()
    assert driver.output == 10
    made.broken.clear()
    later(driver)
    driver.commit_all()
    assert driver.sent() == [("a 0-10 1", 10)]


@pytest.mark.guarantee("G5", section="4.6")
def test_a_failing_result_is_not_overtaken_by_the_next_window() -> None:
    made = Results("a")
    driver = driver_of(made, on_failure=RETRY)
    driver.deliver(("a", "", 1), ("a", "", 11), ("b", "", 1), ("b", "", 11))
    driver.commit()
    for watermark in (10, 20):
        driver.watermark(watermark)
        driver.commit_all()
    assert [value for value, _ in driver.sent()] == ["b 0-10 1", "b 10-20 1"]
    made.broken.clear()
    later(driver)
    driver.commit_all()
    assert [value for value, _ in driver.sent()] == ["a 0-10 1", "a 10-20 1"]


@pytest.mark.guarantee("G8", section="4.6")
def test_failing_results_do_not_starve_those_of_others() -> None:
    made = Results(*(f"bad-{number:02}" for number in range(50)))
    driver = driver_of(made, SMALL, on_failure=RETRY)
    for start in (1, 11):
        driver.deliver(*((f"bad-{number:02}", "", start) for number in range(50)), ("good", "", start))
        driver.commit_all()
    for watermark in (10, 20):
        driver.watermark(watermark)
        driver.commit_all()
    assert driver.sent() == [("good 0-10 1", 10), ("good 10-20 1", 20)]
    tried = len(made.made)
    driver.watermark(21)
    driver.watermark(22)
    assert len(made.made) == tried, "no event tries the results of blocked keys again"


@pytest.mark.guarantee("G10", section="6.1.3")
def test_an_update_to_weak_productions_keeps_moved_panes() -> None:
    driver = driver_of(Results())
    driver.deliver(("a", "", 1), ("b", "", 1))
    driver.commit()
    successor = opened(driver, strong=False)
    successor.deliver(("a", "", 2))
    successor.commit_all()
    assert panes(successor) == {("b", 10): 1} == panes(opened(successor, strong=False))
    assert states(successor) == {"a": {(0, 10): [-1, 2, 0]}}


@pytest.mark.guarantee("G1", section="4.4")
@pytest.mark.parametrize("stamp", [MIN_TIMESTAMP, -(2**61), 2**60 - 3, 2**60, 2**61, MAX_TIMESTAMP - 1])
def test_windows_at_the_ends_of_time_are_those_of_hooks(stamp: int) -> None:
    results = []
    for settings in (COLUMNS, IntervalSettings()):
        driver = driver_of(Results(), settings)
        for moved in (0, 1, 0, -1, 1):
            if MIN_TIMESTAMP <= stamp + moved < MAX_TIMESTAMP:
                driver.deliver(("a", "", stamp + moved))
                driver.commit_all()
        driver.watermark(MAX_TIMESTAMP)
        driver.commit_all()
        results.append(driver.sent())
    assert results[0] == results[1]


@pytest.mark.guarantee("G12", section="7.1")
def test_windows_in_two_forms_stay_apart_in_a_merge() -> None:
    """While an update is under way, one parent may have the old columns, and another one the new ones."""
    forms = [agg.several({"n": agg.count(), "m": agg.count()}), agg.several({"m": agg.count(), "n": agg.count()})]
    tables = [PaneTable(fold_of(one)) for one in forms]
    for table, key in zip(tables, (b"a", b"b"), strict=True):
        assert table.fold is not None
        window = table.changing((0, 10, named_form(table.fold)), table.fold.kinds)
        window.added.append((window.rows_of([key]), []))
        seal_changes(table)
    merged = PaneTable(fold_of(forms[0]))
    merged.take_in(tables, ALL_KEYS)
    assert {window.form: [*window.rows] for window in merged.windows.values()} == {
        tables[0].form: [b"a"],
        tables[1].form: [b"b"],
    }
    assert merged.others() == [merged.windows[0, 10, tables[1].form]]


@pytest.mark.parametrize("form", ["variance float", [["v", "variance float"], ["n", "count"]]])
def test_columns_of_a_later_version_are_refused(form: Any) -> None:
    """They are not taken for those of another aggregate."""
    columns = [("<i8", b"\1" * 8), ("<f8", b"\1" * 8), ("<f8", b"\1" * 8), ("<i8", b"\1" * 8)]
    change = PaneChange(0, 10, msgspec.msgpack.encode(form), b"\0\0\0\0", [b"a"], columns, b"")
    with pytest.raises(CorruptValueError, match="variance float"):
        apply_changes(PaneTable(), [change], "an entry")


def test_columns_of_other_types_are_refused() -> None:
    change = PaneChange(0, 10, msgspec.msgpack.encode("mean float"), b"", [], [("<f8", b""), ("<i8", b"")], b"")
    with pytest.raises(CorruptValueError, match="mean float"):
        apply_changes(PaneTable(), [change], "an entry")


@pytest.mark.guarantee("G13", section="4.2")
def test_the_limit_of_integers_is_that_of_each_pane() -> None:
    """Those of all panes together are far beyond it, as with times in microseconds."""

    def number(value: tuple[str, str]) -> int:
        return int(value[1])

    def deliver(value: int, at: int) -> None:
        driver.deliver(*((key, str(value), at) for key in keys))
        driver.commit_all()

    keys = [f"k{place:04}" for place in range(3_000)]
    mean, row = agg.mean(number).bind(tuple[str, str]), Row(str, Results())
    computation: Any = windows.Aggregate(windows.tumbling(mw.Duration(10)), mean, output="out", row=row)
    driver = IntervalDriver(computation, settings=COLUMNS, outputs={})
    deliver(1 << 51, 1)
    deliver(1 << 51, 2)
    assert len(driver.state.panes) == len(keys)
    driver.deliver((keys[0], str(1 << 62), 3), (keys[1], "0", 3))
    driver.commit_all()
    assert len(driver.state.panes) == len(keys) - 2
    driver.watermark(10)
    driver.commit_all()
    found = {text.split()[0]: text.split()[2] for text, _ in driver.sent()}
    assert len(found) == len(keys)
    assert found[keys[0]] == str(float(((1 << 52) + (1 << 62)) / 3))
    assert found[keys[2]] == str(float(1 << 51))


@pytest.mark.guarantee("G15", section="6.1.1")
def test_no_record_is_added_before_one_that_needs_a_hook() -> None:
    """The earlier ones wait for the state of their key, and one behind them is added only in its turn."""
    driver = driver_of(Results(), IntervalSettings(columns_from=2))
    driver.deliver(("a", "", 11))
    driver.commit()
    driver.deliver(*((f"k{number}", "", 21) for number in range(20)), ("a", "", 21))
    driver.commit()
    cells = driver.state.cells.take_dirty()
    rows = driver.state.cells.rows_of(cells)
    driver.state.cells.flushed(cells, rows)
    driver.state.cells.evict(b"a")
    records = [("a", "", 12), ("a", "", 13), ("a", "", 22), *((f"k{number}", "", 22) for number in range(20))]
    driver.deliver(*records)
    driver.commit()
    assert panes(driver)[("k3", 30)] == 2
    assert panes(driver)[("a", 30)] == 1
    assert [item.record for item in driver.state.blocked.keys[b"a"].items] == [0, 1, 2]
    assert driver.state.intake.records == 3
    (read,) = driver.take(ReadStates)
    driver.handle(StatesRead(read.keys, [row for row in rows if row.key == b"a"]))
    driver.commit_all()
    assert driver.state.intake.records == 0
    assert states(driver)["a"] == {(10, 20): [-1, 3, 0]}
    assert panes(driver)[("a", 30)] == 2


def _kept(value: tuple[str, str]) -> bool:
    """Reads a record. A bad one cannot be read."""
    if value[1] == "bad":
        raise ValueError("not read")
    return True


def _amid_a_batch(*deliveries: list[tuple[str, str, int]], batch: int = 100) -> IntervalDriver:
    """Deliveries behind an append in flight. The pane of "a" at 10 is in its state, and that at 20 in the table."""
    limits = IntervalSettings(columns_from=2, batch_records=batch)
    driver = driver_of(Results(), limits, keep=_kept, on_failure=RETRY)
    driver.deliver(("a", "", 11))
    driver.commit()
    driver.deliver(("a", "", 21), ("b", "", 21))
    driver.commit()
    assert panes(driver) == {("a", 30): 1, ("b", 30): 1}
    driver.deliver(("c", "", 11))  # its append is in flight
    for records in deliveries:
        driver.deliver(*records)
    return driver


def _counts(driver: IntervalDriver) -> list[int]:
    """What is committed: the counts of "a" in its windows that end at 20 and 30, each in its state or in the table."""
    successor = opened(driver)
    state, table = states(successor)["a"], panes(successor)
    return [table["a", end] if ("a", end) in table else state[end - 10, end][1] for end in (20, 30)]


@pytest.mark.guarantee("G15", section="6.1.1")
@pytest.mark.parametrize(
    ("deliveries", "batch"),
    [
        ([[("a", "", 12), ("a", "", 22)], [("a", "bad", 13), ("b", "", 13)]], 3),
        ([[("a", "", 12)], [("a", "", 22), ("b", "", 22)], [("a", "bad", 13)]], 4),
    ],
)
def test_a_hook_that_is_undone_has_nothing_added_behind_it(deliveries: Any, batch: int) -> None:
    """The last record of the batch cannot be read. So what the hook did is undone with it."""
    driver = _amid_a_batch(*deliveries, batch=batch)
    counts = [_counts(driver)]
    while any(isinstance(one, AppendEntry) for one in driver.waiting):
        driver.commit()
        counts.append(_counts(driver))
    assert counts[-1] == [2, 2]
    assert [1, 2] not in counts, "the record at 22 is committed before the one at 12"
    assert driver.state.intake.records == 1


@pytest.mark.guarantee("G15", section="6.1.1")
def test_a_record_waits_if_the_state_before_it_is_not_sealed() -> None:
    def fails(value: Any) -> bytes:
        raise ValueError("no state")

    driver = _amid_a_batch([("a", "", 12), ("a", "", 22)])
    program = driver.state.program
    driver.state.program = replace(program, state=replace(program.state, encode=fails, plain=None))
    driver.commit_all()
    assert _counts(driver) == [1, 1]
    driver.state.program = program
    later(driver)
    driver.commit_all()
    assert _counts(driver) == [2, 2]


@pytest.mark.guarantee("G15", section="6.1.1")
def test_two_windows_in_turns_need_no_commit_for_each_turn() -> None:
    turns = [("a", "", 12 + 10 * (number % 2)) for number in range(50)]
    driver = _amid_a_batch([*turns, ("b", "", 22)])
    before = len(driver.entries)
    driver.commit_all()
    assert len(driver.entries) - before <= 3
    assert states(driver)["a"] == {(10, 20): [-1, 26, 0], (20, 30): [-1, 26, 0]}
    assert panes(driver) == {("b", 30): 2}


@pytest.mark.guarantee("G7", section="4.5")
def test_a_window_that_waits_for_room_holds_the_watermark() -> None:
    driver = driver_of(Results(), IntervalSettings(columns_from=1, outbox_records=1, batch_records=2))
    keys = [f"k{number}" for number in range(10)]
    driver.deliver(*((key, "", 1) for key in keys))
    driver.commit_all()
    driver.watermark(50)
    driver.commit_all()
    results: list[str] = []
    while sends := driver.take(SendDelivery):
        assert driver.output <= 10
        assert driver.state.outbox.unacked.records <= 1 + 2 * 2
        for send in sends:
            results += map(msgspec.msgpack.decode, send.delivery.values)
            driver.handle(Acknowledged(send.delivery.token))
        driver.commit_all()
    assert sorted(results) == [f"{key} 0-10 1" for key in keys]
    assert driver.output == 50


@pytest.mark.guarantee("G8", section="4.5")
def test_a_pane_that_holds_the_watermark_is_named_and_counted() -> None:
    driver = driver_of(Results(), keep=_kept, on_failure=RETRY)
    driver.deliver(("a", "", 1))
    driver.commit()
    driver.deliver(("a", "bad", 25))
    driver.watermark(20)
    assert driver.core.explain_hold() == (HoldKind.HOLD_KIND_TIMER, "key 'a', tag '0/10'")
    assert pending_work(driver.state).sketch.total == 2
    assert pane_timers(driver.state.panes, b"a").keys() == {"0/10"}
    assert [list(keys_in(window)) for window in driver.state.panes.windows.values()] == [[b"a"]]
    shown = with_panes(driver.state, b"", panes_of(driver.state.panes, b"a"))
    assert msgspec.msgpack.decode(shown, type=dict[tuple[int, int], Any]) == {(0, 10): [-1, 1, 0]}


def test_a_key_with_a_state_and_panes_counts_once() -> None:
    driver = driver_of(Results(), IntervalSettings(columns_from=2))
    for at in (1, 11):
        driver.deliver(("a", "", at))
        driver.commit_all()
    driver.deliver(("a", "", 21), ("b", "", 21), ("b", "", 31))
    driver.commit_all()
    assert panes(driver).keys() == {("a", 30), ("b", 30), ("b", 40)}
    assert driver.state.cached_keys == 2
    driver.deliver(("c", "", 1))
    driver.commit_all()
    assert driver.state.cached_keys == 3, "two have a state, and another one a pane alone"


@pytest.mark.guarantee("G13", section="4.6")
def test_large_results_go_into_several_commits() -> None:
    def large(key: str, start: int, end: int, value: Any, revision: int) -> str:
        return f"{key}" * 100

    made: Any = large
    driver = driver_of(made, IntervalSettings(columns_from=1, batch_bytes=2_000))
    driver.deliver(*((f"k{number:02}", "", 1) for number in range(40)))
    driver.commit_all()
    before = len(driver.entries)
    driver.watermark(10)
    driver.commit_all()
    sizes = [len(decode_entry(entry, "an entry").productions) for entry in driver.entries[before:]]
    assert sum(sizes) == 40
    assert max(sizes) <= 8


@pytest.mark.guarantee("G5", section="4.1")
def test_with_a_full_outbox_a_record_runs_after_its_due_pane() -> None:
    driver = driver_of(Results(), IntervalSettings(columns_from=2, outbox_records=1, batch_records=2))
    driver.deliver(*((f"k{number}", "", 1) for number in range(10)))
    driver.commit_all()
    driver.watermark(50)
    driver.commit_all()
    before = panes(driver)
    assert len(before) > 3
    key, _ = max(before)
    driver.sent()
    driver.deliver((key, "", 2))
    driver.commit_all()
    assert driver.sent() == [(f"{key} 0-10 1", 10)]
    assert panes(driver).keys() == before.keys() - {(key, 10)}


@pytest.mark.guarantee("G5", section="4.6")
def test_a_due_pane_of_a_blocked_key_precedes_its_timers() -> None:
    """The key waits for a retry when both windows end. One of them is in the table, and the other in its state."""

    driver = driver_of(Results(), IntervalSettings(columns_from=2), keep=_kept, on_failure=RETRY)
    driver.deliver(("a", "", 1), ("b", "", 1))
    driver.commit_all()
    driver.deliver(("a", "", 11))
    driver.commit_all()
    driver.deliver(("a", "bad", 31))
    driver.commit_all()
    assert driver.core.failing.blocked == 1
    assert panes(driver) == {("a", 10): 1, ("b", 10): 1}
    driver.watermark(25)
    driver.commit_all()
    later(driver)
    driver.commit_all()
    assert driver.sent() == [("b 0-10 1", 10), ("a 0-10 1", 10), ("a 10-20 1", 20)]


@pytest.mark.guarantee("G8", section="4.4")
def test_a_dropped_record_needs_no_state_beside_panes() -> None:
    """Columns are off, and other keys still have panes. The row of its key is damaged, and its hook never reads it."""

    def keep(value: tuple[str, str]) -> bool:
        return value[1] != "drop"

    policy = mw.dead_letter(after=1)
    driver = driver_of(Results(), keep=keep, on_failure=policy)
    driver.deliver(("a", "", 1), ("b", "", 1))
    driver.commit_all()
    successor = opened(driver, settings=IntervalSettings(), keep=keep, on_failure=policy)
    successor.state.cells.evicted = True
    successor.deliver(("c", "drop", 2))
    successor.commit_all()
    assert not successor.take(ReadStates)
    assert not successor.state.intake.records
    assert len(panes(successor)) == 2


@pytest.mark.guarantee("G8", section="4.4")
def test_a_damaged_row_is_read_again_after_delays_that_grow() -> None:
    """Its pane cannot move. It waits, and is shown, and the row is not read again by each event."""
    driver = driver_of(Results())
    driver.deliver(("a", "", 1))
    driver.commit()
    successor = opened(driver, counting(Results(), early=windows.every(mw.seconds(10))), on_failure=RETRY)
    successor.state.cells.evicted = True
    successor.watermark(10)
    since = successor.now
    for attempt in range(1, 4):
        (read,) = successor.take(ReadStates)
        successor.handle(StatesRead(read.keys, [None], {b"a": "damaged"}))
        (failure,) = [failed for key in successor.state.blocked.keys.values() if (failed := key.failure) is not None]
        assert (failure.attempts, failure.since) == (attempt, since)
        assert successor.core.failing.blocked == 1
        assert successor.output == 10
        later(successor, 2 ** (attempt - 1) - 1)
        assert not successor.take(ReadStates), "the delay doubles"
        later(successor, 1)
    assert read_states(successor) == 1
    successor.commit_all()
    assert successor.sent() == [("a 0-10 1", 10)]
    assert successor.core.failing.blocked == 0


def _damaged(driver: IntervalDriver) -> int:
    """Answer reads of rows: they are damaged. Returns how many were read."""
    asked = [one.keys for one in driver.take(ReadStates)]
    for keys in asked:
        driver.handle(StatesRead(keys, [None] * len(keys), dict.fromkeys(keys, "damaged")))
    return len(asked)


@pytest.mark.guarantee("G8", section="4.6")
@pytest.mark.parametrize("policy", ["letters", "stop"])
def test_the_policy_decides_on_a_pane_whose_state_is_damaged(policy: str) -> None:
    """Its result fails, and it cannot move to its hook. A record of its key behind it is judged after it."""

    wait = mw.seconds(1)
    on_failure = mw.dead_letter(after=2, initial=wait) if policy == "letters" else mw.stop(after=2, initial=wait)
    driver = driver_of(Results("a"), keep=_kept, on_failure=on_failure)
    driver.deliver(("a", "", 1), ("b", "", 1))
    driver.commit_all()
    driver.state.cells.evicted = True
    driver.watermark(20)
    driver.deliver(("a", "bad", 25))
    driver.watermark(30)
    letters: list[Any] = []
    for _ in range(6):
        _damaged(driver)
        driver.commit_all()
        for send in driver.take(SendDelivery):
            letters += [msgspec.msgpack.decode(one) for one in send.delivery.values]
            driver.handle(Acknowledged(send.delivery.token))
        later(driver, 100)
    letters = [one for one in letters if not isinstance(one, str)]
    if policy == "stop":
        assert "0/10" in driver.core.stopped
        assert driver.output == 10
        return
    assert len(letters) == 2 == driver.state.counts.dead_letters
    assert "0/10" in str(letters[0])
    assert driver.output == 30
    assert panes(driver) == {}
    assert panes(opened(driver)) == {}


@pytest.mark.guarantee("G8", section="4.6")
@pytest.mark.parametrize("broken", [(), ("a",)])
def test_a_pane_is_judged_by_a_row_that_was_read_for_it(broken: tuple[str, ...]) -> None:
    """The damaged row was read for a record. Behind it a window ends whose result needs no state, unless it fails."""
    driver = driver_of(Results(*broken), keep=_kept, on_failure=mw.dead_letter(after=1))
    driver.deliver(("a", "", 1), ("b", "", 1))
    driver.commit_all()
    driver.state.cells.evicted = True
    driver.deliver(("a", "bad", 25))
    driver.watermark(30)
    sent: list[Any] = []
    for _ in range(6):
        _damaged(driver)
        driver.commit_all()
        for send in driver.take(SendDelivery):
            sent += map(msgspec.msgpack.decode, send.delivery.values)
            driver.handle(Acknowledged(send.delivery.token))
    results = [one for one in sent if isinstance(one, str)]
    assert sorted(results) == [f"{key} 0-10 1" for key in "ab" if key not in broken]
    letters = [str(one) for one in sent if not isinstance(one, str)]
    assert [any("0/10" in one for one in letters), len(letters)] == [bool(broken), 1 + len(broken)]
    assert panes(driver) == {}
    assert driver.output == 30


class _Looked(dict[Any, Any]):
    """Windows that count how often all of them are looked at."""

    looks = 0

    def values(self) -> Any:
        self.looks += 1
        return super().values()


def test_keys_without_a_due_pane_look_at_no_window() -> None:
    """A full outbox asks for the due panes of each key, and a table may have a thousand windows."""
    table = PaneTable(fold_of(agg.count()))
    assert table.fold is not None
    for number in range(1_000):
        window = table.changing((number, number + 10, table.form), table.fold.kinds)
        window.added.append((window.rows_of([b"a"]), []))
    seal_changes(table)
    table.windows = looked = _Looked(table.windows)
    assert not any(table.of_key(b"a", 9) for _ in range(100))
    assert looked.looks == 1, "the first end is sought once"
    assert [one.end for one in table.of_key(b"a", 11)] == [10, 11]
    assert len(table.of_key(b"a")) == 1_000
