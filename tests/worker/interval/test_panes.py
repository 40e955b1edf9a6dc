"""Windows by columns: their panes through failures, updates, splits and merges (4.2, 4.6, 6.2; G1, G2, G5, G7, G8)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

import millwheel as mw
from millwheel import windows
from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.interval.entry import decode_entry
from millwheel.worker.interval.panes.changes import apply_changes, whole_table
from millwheel.worker.interval.panes.table import PaneTable
from millwheel.worker.messages import (
    Acknowledged,
    GroupWatermarks,
    SendDelivery,
)
from tests.worker.interval.column_windows import (
    RETRY,
    SMALL,
    Results,
    child_of,
    counting,
    driver_of,
    later,
    opened,
    panes,
    parts_of,
    read_states,
    states,
)
from tests.worker.interval.driver import INJECTOR, IntervalDriver


@pytest.mark.guarantee("G12", section="6.2")
def test_a_base_amid_a_batch_has_the_committed_panes() -> None:
    driver = driver_of(Results())
    driver.deliver(("a", "", 1), ("b", "", 2))
    driver.commit()
    driver.deliver(("b", "", 25), ("c", "", 25))
    driver.deliver(("c", "", 26), ("d", "", 26))  # in the batch behind the append, as the results are
    driver.watermark(10)
    assert panes(driver) == {("b", 30): 1, ("c", 30): 2, ("d", 30): 1}
    assert in_base(driver) == {("a", 10): 1, ("b", 10): 1, ("b", 30): 1, ("c", 30): 1}
    driver.commit_all()
    assert driver.sent() == [("a 0-10 1", 10), ("b 0-10 1", 10)]


def in_base(driver: IntervalDriver) -> dict[tuple[str, int], int]:
    """The panes of a base that is written now."""
    table = PaneTable()
    apply_changes(table, list(whole_table(driver.state.panes)), "the base")
    windows = table.windows.values()
    return {(key.decode(), one.end): one.columns[0][row] for one in windows for key, row in one.rows.items()}


@pytest.mark.guarantee("G12", section="6.2")
def test_a_base_has_panes_that_leave_out_of_their_order() -> None:
    """The result of one of them cannot be made, so it moves before the others leave."""
    driver = driver_of(Results("b"), on_failure=RETRY)
    driver.deliver(("a", "", 1), ("b", "", 1), ("c", "", 1))
    driver.commit()
    driver.deliver(("d", "", 25))
    driver.watermark(10)
    assert panes(driver) == {("d", 30): 1}
    assert in_base(driver) == {("a", 10): 1, ("b", 10): 1, ("c", 10): 1, ("d", 30): 1}
    driver.commit_all()
    assert in_base(driver) == {("d", 30): 1}


@pytest.mark.guarantee("G12", section="6.2")
def test_a_base_has_no_new_pane_of_a_window_out_of_order() -> None:
    """A record that fails has moved a pane, and back again."""

    def keep(value: tuple[str, str]) -> bool:
        if value[1] == "bad":
            raise ValueError("not read")
        return True

    driver = driver_of(Results(), keep=keep, on_failure=RETRY)
    driver.deliver(("a", "", 1), ("b", "", 1))
    driver.commit()
    driver.deliver(("a", "bad", 1), ("b", "", 1))
    driver.commit_all()
    driver.deliver(("c", "", 25))
    driver.deliver(("d", "", 1))  # in the batch behind the append
    assert panes(driver) == {("a", 10): 1, ("b", 10): 2, ("c", 30): 1, ("d", 10): 1}
    assert in_base(driver) == {("a", 10): 1, ("b", 10): 2, ("c", 30): 1}


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_record_that_fails_leaves_its_pane_in_the_table() -> None:
    def keep(value: tuple[str, str]) -> bool:
        if value[1] == "bad":
            raise ValueError("not read")
        return True

    driver = driver_of(Results(), keep=keep, on_failure=mw.dead_letter(after=2, initial=mw.seconds(1)))
    driver.deliver(("a", "", 1), ("b", "", 1))
    driver.commit()
    driver.deliver(("b", "", 1), ("a", "bad", 1), ("a", "", 2))
    driver.commit_all()
    assert panes(driver) == {("a", 10): 1, ("b", 10): 2}
    later(driver)
    driver.commit_all()
    driver.watermark(10)
    driver.commit_all()
    results = [one for one in driver.sent() if isinstance(one[0], str)]
    assert sorted(results) == [("a 0-10 2", 10), ("b 0-10 2", 10)]
    assert driver.state.counts.dead_letters == 1


@pytest.mark.guarantee("G8", section="4.6")
def test_a_move_that_cannot_be_sealed_waits_for_a_later_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not run again and again, and other keys go on."""
    made = Results("a")
    driver = driver_of(made, on_failure=RETRY)
    driver.deliver(("a", "", 1), ("b", "", 1), ("b", "", 11))
    driver.commit()
    monkeypatch.setattr("millwheel.worker.interval.commits.sealing.MAX_STATE_BYTES", 1)
    driver.watermark(10)
    driver.commit_all()
    assert driver.sent() == [("b 0-10 1", 10)]
    assert driver.output == 10
    assert driver.core.failing.blocked == 1
    tried = len(made.made)
    driver.watermark(11)
    assert len(made.made) == tried
    monkeypatch.undo()
    made.broken.clear()
    later(driver)
    driver.commit_all()
    assert driver.sent() == [("a 0-10 1", 10)]


@pytest.mark.guarantee("G13", section="4.4")
def test_an_update_to_hooks_moves_panes_on_demand_and_bounded() -> None:
    driver = driver_of(Results())
    driver.deliver(*((f"k{number:03}", "", 1) for number in range(200)))
    driver.commit_all()
    made = Results()
    successor = opened(driver, counting(made, early=windows.every(mw.seconds(10))), settings=SMALL)
    successor.state.cells.evicted = True
    assert len(panes(successor)) == 200, "nothing moves before it is needed"
    successor.deliver(("k007", "", 2))
    assert read_states(successor) == 1
    successor.commit_all()
    assert len(panes(successor)) == 199
    assert states(successor) == {"k007": {(0, 10): [-1, 2, 11_000_000]}}, "its hook has set the time of an early result"
    successor.watermark(10)
    most, rounds = 0, 0
    while len(successor.state.panes) or successor.state.timers.count:
        most = max(most, read_states(successor))
        successor.commit_all()
        rounds += 1
        assert rounds < 500
    assert most <= 2 * SMALL.batch_records
    assert sorted(made.made) == sorted([f"k{number:03}" for number in range(200)])


@pytest.mark.guarantee("G5", section="4.6")
def test_panes_that_wait_for_states_precede_later_timers() -> None:
    """An update leaves so many panes to hooks that states are read in turns. The last key also has a later window."""
    driver = driver_of(Results(), IntervalSettings(columns_from=2))
    driver.deliver(("k199", "", 11))
    driver.commit_all()
    driver.deliver(*((f"k{number:03}", "", 1) for number in range(200)))
    driver.commit_all()
    successor = opened(driver, counting(Results(), early=windows.every(mw.seconds(10))), settings=SMALL)
    successor.state.cells.evicted = True
    successor.watermark(20)
    sent: list[str] = []
    for _ in range(200):
        read_states(successor)
        successor.commit_all()
        sent += [value for value, _ in successor.sent()]
    assert len(sent) == 201
    assert [one for one in sent if one.startswith("k199")] == ["k199 0-10 1", "k199 10-20 1"]


@pytest.mark.guarantee("G8", section="4.4")
def test_a_large_state_takes_one_pane_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its later windows are given up or produced by the failure policy, as in hooks."""
    monkeypatch.setattr("millwheel.worker.interval.hooks.pane_moving.MAX_MOVED_BYTES", 10)
    settings = IntervalSettings(columns_from=2)
    driver = driver_of(Results("a 0"), settings, on_failure=mw.dead_letter(after=1, initial=mw.seconds(1)))
    for at in (11, 21):
        driver.deliver(("a", "", at))
        driver.commit()
    driver.deliver(("a", "", 1), ("b", "", 1))
    driver.commit()
    driver.deliver(("a", "", 31), ("b", "", 31))
    driver.commit()
    driver.watermark(30)
    for _ in range(4):
        driver.commit_all()
        later(driver, 100)
    results = [one for one, _ in driver.sent() if isinstance(one, str) and one.startswith("a")]
    assert results == ["a 10-20 1", "a 20-30 1"]
    assert driver.state.counts.dead_letters == 1
    assert panes(driver) == {("a", 40): 1, ("b", 40): 1}


@pytest.mark.guarantee("G13", section="6.2")
def test_a_base_has_many_small_windows_in_one_part() -> None:
    driver = driver_of(Results())
    driver.deliver(*(("a", "", 10 * number) for number in range(300)))
    driver.commit_all()
    base = driver.base()
    assert [part.name for part in base.parts if part.name.startswith("panes")] == ["panes/0"]
    successor = IntervalDriver(counting(Results()), outputs={}, parts=dict(base.parts), entries=[])
    assert len(successor.state.panes) == 300


def _calls(run: Callable[[], object]) -> int:
    """How many functions a call enters."""
    calls = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.guarantee("G8", section="6.2")
def test_a_takeover_looks_at_changed_windows_alone() -> None:
    """It has thousands of entries, and a table may have a thousand windows."""
    driver = driver_of(Results())
    driver.deliver(*(("a", "", 10 * number) for number in range(300)))
    driver.commit_all()
    driver.deliver(("a", "", 5))
    driver.commit_all()
    first, second = (decode_entry(entry, "an entry").panes for entry in driver.entries)
    table = PaneTable(driver.state.panes.fold)
    apply_changes(table, first, "the first entry")
    assert _calls(lambda: apply_changes(table, second, "the second entry")) < 100
    assert table.bytes == sum(window.bytes for window in table.windows.values()) == driver.state.panes.bytes


@pytest.mark.guarantee("G8", section="4.6")
@pytest.mark.parametrize("broken", [["k4095"], ["k4000", "k2000", "k100"]])
def test_a_failing_result_repeats_others_a_few_times(broken: list[str]) -> None:
    """Regression: after each 256 results, all that were left were made again, and failed again."""
    made = Results(*broken)
    driver = driver_of(made, on_failure=RETRY)
    driver.deliver(*((f"k{number}", "", 1) for number in range(4_096)))
    driver.commit_all()
    driver.watermark(10)
    assert 4_096 < len(made.made) < 3 * 4_096


@pytest.mark.guarantee("G10", section="6.1.3")
def test_a_moved_pane_joins_no_weak_commit() -> None:
    """The open commit has sent what its records produced, and would forget which panes it moves."""
    driver = driver_of(Results())
    driver.deliver(("a", "", 1), ("b", "", 1))
    driver.commit()
    computation = counting(Results(), early=windows.each_change())
    successor = opened(driver, computation, strong=False)
    for key in ("c", "d", "a"):
        successor.deliver((key, "", 2))
    for _ in range(4):
        later(successor)
        successor.commit_all()
    assert panes(successor) == {("b", 10): 1}
    assert panes(opened(successor, computation, strong=False)) == {("b", 10): 1}


@pytest.mark.guarantee("G13", section="8.3")
def test_at_the_limit_of_memory_new_panes_are_states() -> None:
    driver = driver_of(Results(), IntervalSettings(columns_from=1, columns_bytes=2_000))
    for first in range(0, 100, 10):
        driver.deliver(*((f"k{number}", "", 1) for number in range(first, first + 10)))
        driver.commit_all()
    assert 10 <= len(driver.state.panes) <= 20
    assert len(states(driver)) == 100 - len(driver.state.panes)
    driver.watermark(10)
    driver.commit_all()
    assert len(driver.sent()) == 100


@pytest.mark.guarantee("G13", section="8.3")
def test_many_windows_of_few_keys_are_left_to_hooks() -> None:
    driver = driver_of(Results())
    for first in range(0, 1_200, 300):
        driver.deliver(*(("a", "", 10 * number) for number in range(first, first + 300)))
        driver.commit_all()
    assert len(driver.state.panes) == 1_000
    assert driver.state.panes.bytes < 400_000
    driver.watermark(12_000)
    driver.commit_all()
    assert driver.sent() == [(f"a {start}-{start + 10} 1", start + 10) for start in range(0, 12_000, 10)]


@pytest.mark.guarantee("G12", section="7.1")
def test_owners_of_a_merged_interval_number_rows_alike() -> None:
    """A child's journal has row numbers before the child has a base. They do not depend on the parents' order."""
    halves = KeyInterval(b"", b"m"), KeyInterval(b"m", None)
    parents = [driver_of(Results(), keys=halves[0]), driver_of(Results(), keys=halves[1])]
    parents[0].deliver(("c", "", 1), ("a", "", 2))
    parents[1].deliver(("z", "", 1), ("n", "", 2), ("n", "", 12))
    for parent in parents:
        parent.commit()
    merged = [parts_of(parents[0], halves[0], "p1"), parts_of(parents[1], halves[1], "p2")]
    child = child_of(merged)
    child.position = 100
    child.deliver(("z", "", 3), ("b", "", 3))
    child.commit()
    expected = {("a", 10): 1, ("b", 10): 1, ("c", 10): 1, ("n", 10): 1, ("n", 20): 1, ("z", 10): 2}
    assert panes(child) == expected
    assert panes(child_of(merged, child.entries)) == expected
    assert panes(child_of(list(reversed(merged)), child.entries)) == expected


def _sent_after_a_merge(columns_from: int) -> tuple[list[Any], list[Any]]:
    """What a child sends at once, and after its watermark has risen. Only the parent of "y" and "z" is far."""
    halves = KeyInterval(b"", b"m"), KeyInterval(b"m", None)
    settings = IntervalSettings(columns_from=columns_from, batch_records=1)
    low, high = (driver_of(Results(), settings, keys=keys) for keys in halves)
    low.deliver(("a", "", 30))
    low.commit_all()
    low.watermark(5)
    low.deliver(("a", "", 31))
    low.commit_all()
    high.deliver(("y", "", 1), ("z", "", 1))
    high.commit_all()
    high.deliver(("z", "", 11))  # too few to begin a window by columns
    high.commit_all()
    high.watermark(25)
    high.commit()  # the result of "y"
    assert [one for one, _ in high.sent()] == ["y 0-10 1"]
    parents = [parts_of(low, halves[0], "p1"), parts_of(high, halves[1], "p2")]
    child = IntervalDriver(counting(Results()), settings=settings, outputs={}, parents=parents, entries=[])
    child.position = 1_000
    child.commit_all()
    assert child.state.clocks.watermark == 5
    sent = child.sent()
    child.watermark(40)
    child.commit_all()
    return sent, child.sent()


@pytest.mark.guarantee("G5", section="7.1")
def test_due_panes_come_in_order_after_a_merge() -> None:
    """They were due for their parent. So they are due before the child's watermark has reached them."""
    at_once, after = _sent_after_a_merge(2)
    assert [one for one, _ in at_once if one.startswith("z")] == ["z 0-10 1", "z 10-20 1"]
    assert (at_once, after) == _sent_after_a_merge(0)


@pytest.mark.guarantee("G12", section="7.1")
def test_a_child_takes_over_the_panes_of_its_keys() -> None:
    parent = driver_of(Results())
    parent.deliver(("a", "", 1), ("z", "", 1), ("m", "", 12))
    parent.commit()
    child = child_of([parts_of(parent, ALL_KEYS, "p")], keys=KeyInterval(b"m", None))
    assert panes(child) == {("z", 10): 1, ("m", 20): 1}
    child.watermark(20)
    child.commit_all()
    assert child.sent() == [("z 0-10 1", 10), ("m 10-20 1", 20)]


@pytest.mark.guarantee("G7", section="4.5")
def test_a_moved_pane_of_a_record_holds_the_watermark() -> None:
    """Its window ends while the move waits for an append in flight."""
    driver = driver_of(Results())
    driver.deliver(("a", "", 1))
    driver.commit()
    successor = opened(driver, counting(Results(), early=windows.every(mw.seconds(10))))
    successor.deliver(("b", "", 35))
    successor.deliver(("a", "", 25))
    successor.watermark(20)
    assert panes(successor) == {}
    assert successor.output == 10
    successor.commit_all()
    assert ("a 0-10 1", 10) in successor.sent()


@pytest.mark.guarantee("G5", section="4.6")
def test_a_due_pane_of_a_failing_record_comes_before_it() -> None:
    broken = ["bad"]

    def keep(value: tuple[str, str]) -> bool:
        if value[1] in broken:
            raise ValueError("not read")
        return True

    driver = driver_of(Results(), keep=keep, on_failure=RETRY)
    driver.deliver(("a", "", 1), ("b", "", 1))
    driver.commit()
    driver.deliver(("a", "bad", 25))
    driver.commit_all()
    driver.watermark(20)
    driver.commit_all()
    (send,) = driver.take(SendDelivery)
    driver.handle(Acknowledged(send.delivery.token))
    assert driver.output == 10, "the pane holds it"
    broken.clear()
    later(driver)
    assert panes(driver) == {}
    assert driver.output == 10
    driver.commit()
    assert driver.state.intake.records == 1, "the result is committed, and the record runs behind it"
    driver.commit_all()
    assert driver.sent() == [("a 0-10 1", 10)]
    driver.watermark(30)
    driver.commit_all()
    assert driver.sent() == [("a 20-30 1", 30)]


@pytest.mark.guarantee("G5", section="4.6")
def test_a_failing_timer_is_not_overtaken_by_a_pane() -> None:
    """One window of the key was begun by a hook, and the next one by columns."""
    made = Results("a 0")
    driver = driver_of(made, IntervalSettings(columns_from=2), on_failure=RETRY)
    driver.deliver(("a", "", 1))
    driver.commit()
    driver.deliver(("a", "", 11), ("b", "", 11))
    driver.commit()
    assert panes(driver) == {("a", 20): 1, ("b", 20): 1}
    driver.watermark(20)
    driver.commit_all()
    assert driver.sent() == [("b 10-20 1", 20)]
    made.broken.clear()
    later(driver)
    driver.commit_all()
    assert driver.sent() == [("a 0-10 1", 10), ("a 10-20 1", 20)]


@pytest.mark.guarantee("G8", section="4.6")
def test_an_event_passes_over_windows_of_blocked_keys() -> None:
    """A window of a million blocked keys would take a second of each event."""

    def keep(value: tuple[str, str]) -> bool:
        if value[1] == "bad":
            raise ValueError("not read")
        return True

    driver = driver_of(Results(), keep=keep, on_failure=RETRY)
    keys = [f"k{number}" for number in range(500)]
    driver.deliver(*((key, "", 1) for key in keys))
    driver.commit()
    driver.deliver(*((key, "bad", 25) for key in keys))
    driver.watermark(20)
    assert len(driver.state.panes) == 500
    assert _calls(lambda: driver.core.step(GroupWatermarks({INJECTOR: 21}), driver.now)) < 500


@pytest.mark.guarantee("G12")
def test_a_base_without_panes_needs_no_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each computation writes bases, and its worker may lack NumPy. Its import would also stop the event loop."""
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert list(whole_table(PaneTable())) == []
