"""Derived keys of pages: no user's key, no two alike, and each belongs to its key."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millwheel.model.keys import KeyInterval
from millwheel.model.page_keys import PAGE_BYTE, is_page_key, page_key, row_owner

KEYS = st.text(st.characters(exclude_categories=["Cs"])).map(str.encode)
PLACES = st.tuples(KEYS, st.integers(0, 1 << 70))


@given(PLACES, PLACES)
def test_a_page_has_one_key_that_no_other_page_or_user_has(one: tuple[bytes, int], other: tuple[bytes, int]) -> None:
    assert (page_key(*one) == page_key(*other)) is (one == other)
    assert page_key(*one) != other[0]
    assert is_page_key(page_key(*one))
    assert not is_page_key(one[0])
    assert PAGE_BYTE not in one[0]


@given(PLACES, KEYS, KEYS)
def test_a_page_is_in_the_interval_of_its_key(place: tuple[bytes, int], at: bytes, end: bytes) -> None:
    key = place[0]
    assert row_owner(page_key(*place)) == key
    assert row_owner(key) == key
    low, high = sorted((at, end))
    intervals = [KeyInterval(b"", low)] if low else []
    intervals += [KeyInterval(low, high)] if low < high else []
    intervals.append(KeyInterval(high, None))
    assert sum(row_owner(page_key(*place)) in one for one in intervals) == 1
    assert all((row_owner(page_key(*place)) in one) is (key in one) for one in intervals)
