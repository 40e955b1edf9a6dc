"""Key intervals against sets of keys (4.2, 7.1)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel.model.keys import ALL_KEYS, KeyInterval

BOUNDS: list[bytes | None] = [b"", b"b", b"bb", b"c", b"m", b"\xff", None]
PROBES = [b"", b"a", b"b", b"ba", b"bb", b"bc", b"c", b"l", b"m", b"z", b"\xff", b"\xff\xff"]


@st.composite
def intervals(draw: st.DrawFn) -> KeyInterval:
    low, high = sorted(draw(st.lists(st.integers(0, len(BOUNDS) - 1), min_size=2, max_size=2, unique=True)))
    start = BOUNDS[low]
    assert start is not None
    return KeyInterval(start, BOUNDS[high])


def members(interval: KeyInterval | None) -> set[bytes]:
    return set() if interval is None else {key for key in PROBES if key in interval}


@pytest.mark.paper(section="7.1")
@settings(max_examples=300)
@given(intervals(), intervals())
def test_interval_algebra_is_that_of_the_sets_of_keys(one: KeyInterval, other: KeyInterval) -> None:
    assert one.overlaps(other) == bool(members(one) & members(other))
    assert members(one.intersection(other)) == members(one) & members(other)


@pytest.mark.guarantee("G11")
@settings(max_examples=300)
@given(intervals(), st.sampled_from(PROBES))
def test_a_split_loses_no_key_and_repeats_none(interval: KeyInterval, at: bytes) -> None:
    if at not in interval or at == interval.start:
        with pytest.raises(ValueError, match="does not split"):
            interval.split(at)
        return
    left, right = interval.split(at)
    assert not left.overlaps(right)
    assert members(left) | members(right) == members(interval)
    assert (left.start, left.end, right.start, right.end) == (interval.start, at, at, interval.end)


@pytest.mark.parametrize(("start", "end"), [(b"b", b"b"), (b"b", b"a"), (b"", b"")])
def test_an_empty_interval_is_refused(start: bytes, end: bytes) -> None:
    with pytest.raises(ValueError, match="empty key interval"):
        KeyInterval(start, end)


def test_all_keys_holds_every_key() -> None:
    assert members(ALL_KEYS) == set(PROBES)


@pytest.mark.paper(section="4.2")
@given(st.text(max_size=5), st.text(max_size=5))
def test_order_of_keys_is_the_order_of_their_texts_code_points(one: str, other: str) -> None:
    assert (one.encode() < other.encode()) == (one < other)


def test_an_interval_prints_as_text_and_other_bytes_as_escapes() -> None:
    assert str(KeyInterval(b"a", "ä".encode())) == "['a', 'ä')"
    assert str(KeyInterval(b"\xff")) == "['\\\\xff', +inf)"
