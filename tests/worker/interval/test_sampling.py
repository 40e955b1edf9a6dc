"""The sample of an interval's keys finds the split that halves the load, and keys too hot to split (7.1, 8.4)."""

from __future__ import annotations

import random

import pytest

from millwheel.worker.interval.intake import KeySample


def _feed(sample: KeySample, keys: list[bytes], batch: int) -> None:
    for at in range(0, len(keys), batch):
        part = keys[at : at + batch]
        sample.note(part, range(len(part)))


@pytest.mark.paper(section="7.1")
def test_the_key_that_halves_the_load_is_found() -> None:
    chance = random.Random(5)
    sample = KeySample()
    _feed(sample, [b"%06d" % int(1e6 * chance.random() ** 2) for _ in range(50_000)], 100)
    below, at = 0.0, b""
    for key, share in sample.shares():
        if below >= 0.5:
            at = key
            break
        below += share
    # The median of a squared uniform number is a quarter.
    assert 0.17 < int(at) / 1e6 < 0.34


@pytest.mark.paper(section="8.4")
def test_a_hot_key_shows_its_share() -> None:
    chance = random.Random(6)
    sample = KeySample()
    _feed(sample, [b"hot" if chance.random() < 0.6 else b"%d" % chance.randrange(10_000) for _ in range(50_000)], 64)
    shares = dict(sample.shares())
    assert 0.5 < shares[b"hot"] < 0.7
    assert abs(sum(shares.values()) - 1) < 1e-9
    assert list(shares) == sorted(shares)


def test_small_and_large_deliveries_weigh_the_same_per_record() -> None:
    sample = KeySample()
    for _ in range(64):
        sample.note([b"a"] * 100, range(100))
        sample.note([b"b"], [0])
    assert 0.97 < dict(sample.shares())[b"a"] < 1.0


def test_nothing_is_sampled_of_nothing() -> None:
    sample = KeySample()
    sample.note([b"a"], [])
    assert sample.shares() == []
