"""The minima that low watermarks are made of (4.5, 7.2)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.model.watermarks import InputWatermark, MinTracker
from tests.kept import kept


@pytest.mark.paper(section="4.5")
@settings(max_examples=300)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(1, 3)), max_size=300))
def test_min_tracker_equals_a_sorted_list(history: list[tuple[bool, int, int]]) -> None:
    tracker, model = MinTracker(), list[int]()
    for is_add, timestamp, count in history:
        if is_add:
            tracker.add(timestamp, count)
            model += [timestamp] * count
        elif model.count(timestamp) >= count:
            tracker.remove(timestamp, count)
            for _ in range(count):
                model.remove(timestamp)
        else:
            with pytest.raises(KeyError, match=f"timestamp {timestamp} is present"):
                tracker.remove(timestamp, count)
        assert tracker.min() == min(model, default=MAX_TIMESTAMP)
        assert len(tracker) == len(model)
        assert dict(tracker.items()) == Counter(model)


@pytest.mark.paper(section="7.2")
@settings(max_examples=50)
@given(st.lists(st.integers(-1000, 1000), min_size=100, max_size=400), st.randoms(use_true_random=False))
def test_min_tracker_batches_survive_compaction(timestamps: list[int], chance: object) -> None:
    tracker = MinTracker()
    for timestamp in timestamps:
        tracker.add(timestamp)
    model = sorted(timestamps)
    chance.shuffle(timestamps)  # type: ignore[attr-defined]
    while timestamps:
        gone, timestamps = timestamps[:7], timestamps[7:]
        for timestamp in gone[:2]:
            tracker.add(timestamp)
        for timestamp in (*gone, *gone[:2]):
            tracker.remove(timestamp)
        for timestamp in gone:
            model.remove(timestamp)
        assert tracker.min() == min(model, default=MAX_TIMESTAMP)
    assert len(tracker) == 0


@pytest.mark.guarantee("G7", section="7.2")
@pytest.mark.parametrize("size", [10, 100, 1_000, 10_000])
def test_min_tracker_passes_many_that_waited_behind_one(size: int) -> None:
    """The heap still has the removed ones. A few are popped, and for many it is rebuilt."""
    tracker = MinTracker()
    for timestamp in range(size):
        tracker.add(timestamp)
    passed = 2 * size // 5
    for timestamp in range(1, passed):
        tracker.remove(timestamp)
    assert tracker.min() == 0
    tracker.remove(0)
    assert tracker.min() == passed
    assert dict(tracker.items()) == dict.fromkeys(range(passed, size), 1)
    tracker.add(passed - 1)
    assert tracker.min() == passed - 1
    for timestamp in range(passed - 1, size):
        tracker.remove(timestamp)
    assert tracker.min() == MAX_TIMESTAMP
    assert list(tracker.items()) == []


@pytest.mark.guarantee("G13")
def test_min_tracker_memory_follows_what_is_present() -> None:
    tracker = MinTracker()
    tracker.add(0)
    for timestamp in range(1, 20_000):
        tracker.add(timestamp)
        tracker.remove(timestamp)
    assert len(kept(tracker, object)) <= 200
    assert tracker.min() == 0


def test_min_tracker_counts_must_be_positive() -> None:
    tracker = MinTracker()
    tracker.add(5)
    for refused in (tracker.add, tracker.remove):
        with pytest.raises(ValueError, match="count must be positive, not 0"):
            refused(5, 0)
    assert (len(tracker), tracker.min()) == (1, 5)


@pytest.mark.guarantee("G7", section="7.2")
def test_unknown_sender_holds_the_input_at_minus_infinity() -> None:
    watermark = InputWatermark(["a", "b"])
    watermark.update({"a": 10, "stranger": 1})
    assert watermark.value == MIN_TIMESTAMP
    assert watermark.holding() == ["b"]
    watermark.update({"b": 7})
    assert (watermark.value, watermark.holding()) == (7, ["b"])


@pytest.mark.guarantee("G7")
def test_the_input_watermark_without_senders_is_minus_infinity() -> None:
    watermark = InputWatermark()
    assert watermark.value == MIN_TIMESTAMP
    watermark.update({"a": 3})
    assert watermark.value == MIN_TIMESTAMP


@pytest.mark.guarantee("G7")
def test_a_senders_next_life_is_unknown_and_lowers_nothing() -> None:
    watermark = InputWatermark(["a"])
    watermark.update({"a": 50})
    watermark.restart("a")
    assert (watermark.value, dict(watermark.latest)) == (50, {})
    watermark.update({"a": 40})
    assert watermark.value == 50
    watermark.update({"a": 60})
    assert watermark.value == 60


@pytest.mark.guarantee("G7")
def test_a_new_sender_counts_from_then_on_and_lowers_nothing() -> None:
    watermark = InputWatermark(["a"])
    watermark.update({"a": 100})
    watermark.follow(["a", "b"])
    assert watermark.value == 100
    watermark.update({"a": 200, "b": 30})
    assert watermark.value == 100
    watermark.update({"b": 150})
    assert watermark.value == 150
    watermark.update({"b": 10})
    assert watermark.latest["b"] == 150


@pytest.mark.guarantee("G8")
def test_a_removed_sender_holds_nothing() -> None:
    watermark = InputWatermark(["a", "b"])
    watermark.update({"a": 100})
    watermark.follow(["a"])
    assert watermark.value == 100
    watermark.follow([])
    assert watermark.value == 100


@pytest.mark.guarantee("G8")
def test_a_broadcast_counts_once_its_group_is_followed() -> None:
    """No broadcast may come after the catalog's change: a group whose sources have finished has its last value."""
    watermark = InputWatermark(["a"])
    watermark.follow(["a"], beside=["b"])
    watermark.update({"a": 100, "b": 70, "c": 90})
    watermark.follow(["b"], beside=["a"])
    assert watermark.value == 100
    watermark.update({"b": 120})
    assert watermark.value == 120
    assert watermark.latest == {"a": 100, "b": 120}, "the catalog has named no group c"


@pytest.mark.guarantee("G7", section="7.2")
@settings(max_examples=300)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.frozensets(st.sampled_from("abc")), st.frozensets(st.sampled_from("abc"))),
            st.dictionaries(st.sampled_from("abc"), st.integers(0, 20), max_size=3),
            st.sampled_from("abc"),
        ),
        max_size=40,
    )
)
def test_the_input_watermark_never_goes_back_nor_leads_a_sender(
    history: list[tuple[frozenset[str], frozenset[str]] | dict[str, int] | str],
) -> None:
    watermark, groups, known, before = InputWatermark(), frozenset[str](), dict[str, int](), int(MIN_TIMESTAMP)
    for action in history:
        if isinstance(action, tuple):
            watermark.follow(*action)
            groups = action[0]
            known = {group: value for group, value in known.items() if group in action[0] | action[1]}
        elif isinstance(action, str):
            watermark.restart(action)
            known.pop(action, None)
        else:
            watermark.update(action)
            known |= {group: max(value, known.get(group, value)) for group, value in action.items()}
        smallest = min((known.get(group, MIN_TIMESTAMP) for group in groups), default=MIN_TIMESTAMP)
        assert watermark.value == max(before, smallest)
        assert watermark.latest == known
        before = watermark.value
