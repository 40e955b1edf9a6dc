"""Which record is refused, where several consumers say what is wrong with it (section 4.2)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millwheel.client.injector.keying import KeyColumn, first_refused
from millwheel.sdk.errors import KeyExtractionError

OK, NO_KEY, NO_TYPE = range(3)
views = st.lists(st.lists(st.sampled_from([OK, OK, NO_KEY, NO_TYPE]), min_size=6, max_size=6), min_size=1, max_size=3)


def column(view: list[int]) -> KeyColumn:
    """What one consumer says: a record without a type may have a key all the same."""
    first = next((at for at, one in enumerate(view) if one == NO_KEY), len(view))
    problems = {at: KeyExtractionError(str(at)) for at, one in enumerate(view) if one != OK}
    return KeyColumn([b"k"] * first, dict(problems), "why" if first < len(view) else "")


def naive(consumers: list[list[int]]) -> int | None:
    """One record after the other: who has met a record without a key takes part no more."""
    waiting: set[int] = set()
    for at in range(6):
        live = [number for number in range(len(consumers)) if number not in waiting]
        if live and all(consumers[number][at] != OK for number in live):
            return at
        waiting |= {number for number in live if consumers[number][at] == NO_KEY}
    return None


@given(views)
def test_a_record_is_refused_if_no_consumer_that_goes_on_takes_it(consumers: list[list[int]]) -> None:
    found = first_refused([column(view) for view in consumers])
    assert (None if found is None else found[0]) == naive(consumers)


@given(views)
def test_a_strict_sender_is_refused_the_first_record_with_a_problem(consumers: list[list[int]]) -> None:
    found = first_refused([column(view) for view in consumers], strict=True)
    bad = [at for at in range(6) if any(view[at] != OK for view in consumers)]
    assert (None if found is None else found[0]) == (bad[0] if bad else None)


def test_a_consumer_whose_keys_are_unknown_refuses_nothing() -> None:
    unknown = KeyColumn([], why="no worker", unknown=True)
    assert first_refused([unknown]) is None
    assert first_refused([unknown, column([NO_TYPE] * 6)]) is not None
