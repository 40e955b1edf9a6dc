"""How far a stream of Redis was read, against a naive model of one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.connectors.redis.places import NONE, Glimpse, StreamPosition, beginning, follow

STEPS = st.lists(st.tuples(st.sampled_from(["add", "trim", "delete", "read"]), st.integers(0, 5)), max_size=40)


class Stream:
    """A stream: its entries are numbers, which are their ids."""

    def __init__(self) -> None:
        self.added = 0
        self.there: list[int] = []

    def see(self, after: str, most: int) -> Glimpse:
        behind = [one for one in self.there if one > int(after.partition("-")[0])]
        found = [f"{one}-0" for one in behind[:most]]
        first = f"{self.there[0]}-0" if self.there else "0-0"
        return Glimpse(self.added, len(self.there), first, f"{self.added}-0", found, len(behind) <= most)


def before_position(position: StreamPosition | None) -> set[int]:
    """The entries that count as read."""
    return set(range(1_000 if position is None else int(position.id.partition("-")[0]) + 1))


@pytest.mark.guarantee("G1")
@given(before=st.integers(0, 5), steps=STEPS)
def test_what_is_removed_unread_is_noticed(before: int, steps: list[tuple[str, int]]) -> None:
    """And nothing else is. What was trimmed stops the stream there, and what was deleted at the end at the latest."""
    stream, position, unread, trimmed = Stream(), None, set[int](), set[int]()
    stream.added = before  # they came and went before the first read
    for step, number in [*steps, ("read", 1000)]:
        if step == "add":
            for _ in range(number):
                stream.added += 1
                stream.there.append(stream.added)
        elif step == "trim":
            trimmed |= set(stream.there[:number]) - before_position(position)
            del stream.there[:number]
        elif step == "delete" and stream.there:
            gone = stream.there.pop(number % len(stream.there))
            unread |= {gone} - before_position(position)
        elif step == "read":
            seen = stream.see((position or StreamPosition()).id, number)
            came = beginning(seen) if position is None else position
            position, missing = follow(came, seen)
            if missing is not None:
                assert not missing.set_back
                assert missing.removed == len(unread | trimmed)
                return
            assert not trimmed
            assert not unread or not seen.at_end
            if seen.at_end:
                assert position.added == stream.added


@pytest.mark.parametrize(
    ("position", "seen"),
    [
        (StreamPosition("7-0", 7), NONE),
        (StreamPosition("7-0", 7), Glimpse(5, 5, "1-0", "5-0", [], True)),
        (StreamPosition("7-0", 7), Glimpse(2, 2, "8-0", "9-0", ["8-0", "9-0"], True)),
        (StreamPosition("7-0", 7), Glimpse(6, 6, "1-0", "8-0", ["8-0"], True)),
    ],
    ids=["gone", "set-back", "made-again", "lost-and-went-on"],
)
def test_a_stream_that_was_set_back_is_noticed(position: StreamPosition, seen: Glimpse) -> None:
    after, missing = follow(position, seen)
    assert missing is not None
    assert missing.set_back
    assert after == StreamPosition(seen.last, seen.added)


def test_whoever_accepts_what_is_missing_goes_on() -> None:
    position, missing = follow(StreamPosition("2-0", 2), Glimpse(9, 4, "6-0", "9-0", ["6-0", "7-0"], False))
    assert missing is not None
    assert (missing.removed, position) == (3, StreamPosition("7-0", 7))
    assert follow(position, Glimpse(9, 4, "6-0", "9-0", ["8-0", "9-0"], True)) == (StreamPosition("9-0", 9), None)
