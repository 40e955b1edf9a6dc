"""A small topology that tests feed with bad input of all kinds."""

from __future__ import annotations

import msgspec

import millwheel as mw


class Word(msgspec.Struct):
    text: str


class Seen(msgspec.Struct, frozen=True):
    text: str
    times: int


class State(msgspec.Struct):
    times: int = 0
    ballast: bytes = b""


class Count(mw.Computation[Word, State]):
    """Counts each word. Some words make it fail or exceed a limit."""

    def process_record(self, ctx: mw.Context[State], record: mw.Record[Word]) -> None:
        state, text = ctx.state, record.value.text
        state.times += 1
        if text == "huge-state":
            state.ballast = bytes(5 << 20)
        if text == "huge-value":
            ctx.produce("seen", Seen("x" * (2 << 20), 1))
        if text == "huge-tag":
            ctx.set_timer(record.timestamp, "t" * 1_000)
        ctx.produce("seen", Seen(text, state.times))

    def process_timer(self, ctx: mw.Context[State], timer: mw.Timer) -> None:
        """Do nothing: tests only inspect the timers."""


words = mw.Topology("words")
words.source("spoken", Word)
words.add(Count, inputs={"spoken": mw.key("text")}, outputs={"seen": Seen}, on_failure=mw.dead_letter(after=1))
