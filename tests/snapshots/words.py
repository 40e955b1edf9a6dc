"""A topology that counts words, without event time: its results show each record that took effect, and how often."""

from __future__ import annotations

import msgspec

import millwheel as mw


class Word(msgspec.Struct):
    text: str
    number: int


class Count(msgspec.Struct, frozen=True):
    text: str
    times: int
    sum: int


class Counter(mw.Computation[Word, list[int]]):
    """Counts the words of each text, and adds their numbers."""

    def process_record(self, ctx: mw.Context[list[int]], record: mw.Record[Word]) -> None:
        ctx.state.append(record.value.number)
        ctx.produce("counts", Count(ctx.key, len(ctx.state), sum(ctx.state)))


words = mw.Topology("words")
words.source("texts", Word)
words.add(Counter, inputs={"texts": mw.key("text")}, outputs={"counts": Count})
