"""The program of the recorded database. Its package is in there, so an earlier version's code runs in the test."""

from __future__ import annotations

import msgspec

import millwheel as mw
from millwheel import agg, windows


class Word(msgspec.Struct):
    """A word, and its number among all words."""

    text: str
    number: int


class Seen(msgspec.Struct):
    """How often a word was seen."""

    text: str
    times: int


class Hour(msgspec.Struct):
    """How often a word was seen in an hour that begins at ``start``."""

    key: str
    start: int
    end: int
    times: int
    revision: int = 0


class Notes(mw.GrowingState):
    """A state with pages."""

    times: int = 0
    numbers: mw.MapState[int, str]


class NoteWords(mw.Computation[Word, Notes]):
    """Notes each number of a word, and says at the end of the hour how many there are."""

    def process_record(self, ctx: mw.Context[Notes], record: mw.Record[Word]) -> None:
        """Note the number, and produce how often the word was seen."""
        ctx.state.times += 1
        ctx.state.numbers[record.value.number] = "x" * 100
        ctx.set_timer(mw.Timestamp(record.timestamp - record.timestamp % mw.hours(1) + mw.hours(1)), "hour")
        ctx.produce("seen", Seen(ctx.key, ctx.state.times))

    def process_timer(self, ctx: mw.Context[Notes], timer: mw.Timer) -> None:
        """Produce the number of numbers."""
        ctx.produce("ended", Seen(ctx.key, len(ctx.state.numbers)))


recorded = mw.Topology("recorded")
words = recorded.source("words", Word)
recorded.add(NoteWords, inputs={"words": mw.key("text")}, outputs={"seen": Seen, "ended": Seen})
words.key_by("text").window(windows.tumbling(mw.hours(1))).aggregate("hours", Hour, times=agg.count())
