"""Words are counted, one by one."""

from __future__ import annotations

from collections import Counter
from random import Random

from examples.gallery.word_count import Count, word_count
from tests.examples.gallery.playing import at, play


def test_each_word_is_counted_once() -> None:
    chance = Random(1)
    lines = [" ".join(chance.choices(["the", "Wheel", "mill", "turns", "a"], k=6)) for _ in range(60)]
    harness = play(word_count, [("lines", line, at(number)) for number, line in enumerate(lines)])
    expected = Counter(word for line in lines for word in line.lower().split())
    # Each count from 1 on is produced once.
    every = {Count(word, times) for word, total in expected.items() for times in range(1, total + 1)}
    found = harness.values("counts")
    assert len(found) == len(every)
    assert set(found) == every
