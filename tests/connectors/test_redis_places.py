"""How far a stream of Redis was read, against a naive model of one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.connectors.redis.places import NONE, Glimpse, Missing, StreamPosition, beginning, follow, id_before

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
            came = beginning("earliest", seen)[0] if position is None else position
            position, missing = follow(came, seen)
            if missing is not None:
                assert not missing.set_back
                assert missing.removed == len(unread | trimmed)
                return
            assert not trimmed
            assert not unread or not seen.at_end
            if seen.at_end:
                assert position.added == stream.added


@pytest.mark.guarantee("G1")
@given(
    before=st.integers(0, 5),
    start=st.sampled_from(["earliest", "latest"]) | st.integers(0, 12),
    steps=STEPS,
    later=STEPS,
)
def test_no_start_skips_entries_silently(
    before: int, start: str | int, steps: list[tuple[str, int]], later: list[tuple[str, int]]
) -> None:
    """A number: behind that entry. What was added behind it is read, or an error says that something may be missing."""
    stream, deleted = Stream(), set[int]()
    stream.added = before
    take(stream, steps, deleted)
    there, seen = set(stream.there), stream.see("0-0", 0)
    position, missing = beginning(start if isinstance(start, str) else f"{start}-0", seen)
    if missing is not None:
        assert isinstance(start, int)
        assert missing.set_back == (start > stream.added)
        return
    first = start if isinstance(start, int) else {"earliest": 0, "latest": stream.added}[start]
    wanted = {one for one in range(first + 1, stream.added + 1) if start != "earliest" or one in there}
    got, deleted_later = set[int](), set[int]()
    for step, number in [*later, ("read", 1000)]:
        if step != "read":
            before_step = stream.added
            take(stream, [(step, number)], deleted_later)
            wanted |= set(range(before_step + 1, stream.added + 1))
            continue
        seen = stream.see(position.id, number)
        position, missing = follow(position, seen)
        if missing is not None:
            assert not missing.set_back
            return
        got |= {int(id.partition("-")[0]) for id in seen.found}
    assert got <= wanted
    assert wanted - got <= deleted | deleted_later
    assert position.added == stream.added


def take(stream: Stream, steps: list[tuple[str, int]], deleted: set[int]) -> None:
    """Let a stream grow and shrink."""
    for step, number in steps:
        if step == "add":
            stream.there += range(stream.added + 1, stream.added + number + 1)
            stream.added += number
        elif step == "trim":
            del stream.there[:number]
        elif step == "delete" and stream.there:
            deleted.add(stream.there.pop(number % len(stream.there)))


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(0, 3))
def test_a_time_begins_at_its_first_entry(time: int, milliseconds: int, number: int) -> None:
    after, _, sequence = id_before(mw.Timestamp(time)).partition("-")
    is_behind = (milliseconds, number) > (int(after), int(sequence))
    assert is_behind == (milliseconds * 1_000 >= time) or (milliseconds, number) == (0, 0)


def test_what_was_removed_around_a_start_is_not_known() -> None:
    seen = Glimpse(9, 4, "6-0", "9-0", [], False)
    assert beginning("5-0", seen) == (StreamPosition("5-0", 5), Missing(None, set_back=False))
    assert beginning("6-0", seen) == (StreamPosition("6-0", None), None)
    trimmed = Glimpse(12, 3, "10-0", "12-0", ["10-0"], False)
    assert follow(StreamPosition("7-0", None), trimmed) == (StreamPosition("10-0", 10), Missing(None, set_back=False))


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
