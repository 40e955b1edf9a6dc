"""Word count: how often each word has been said so far.

A line becomes several words, and each word has its own key. So the words are a stream of their own: ``named``. The
aggregate has no window, so each word produces its new count at once.
"""

from __future__ import annotations

import msgspec

import millwheel as mw
from millwheel import agg

__all__ = ["Count", "word_count"]


class Count(msgspec.Struct, frozen=True):
    """How often a word has been said so far."""

    word: str
    times: int


word_count = mw.Topology("word-count")
lines = word_count.source("lines", str)
words = lines.flat_map(lambda line: line.lower().split(), str).named("words")
words.key_by(lambda word: word, name="word").aggregate("counts", Count, times=agg.count())
