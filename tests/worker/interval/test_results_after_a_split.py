"""The results of a window arrive once at their log, also if the interval splits before all have their ACK."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.worker.dedup import Dedup
from millwheel.worker.messages import Acknowledged, Delivery, Resend, SendDelivery
from tests.worker.interval.column_windows import Results, child_of, driver_of, parts_of

_KEYS = [f"k{number:02}" for number in range(12)]
_JOURNAL = "test.1.j1"


class _Log:
    """The ids of a log that takes, refuses and commits parts of what it gets, at random."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._ids = Dedup(ALL_KEYS, "log.1.j1")
        self._ids.admit(_JOURNAL)
        self.values: list[bytes] = []

    def give(self, delivery: Delivery) -> list[int]:
        """Take a delivery. Returns the indexes of the records that have no ACK."""
        verdict = self._ids.check(delivery.ids, delivery.keys, delivery.timestamps, delivery.sender)
        fresh = list(verdict.fresh_indexes)
        kept = [at for at in fresh if self._random.random() < 0.7] if self._random.random() < 0.6 else fresh
        refused = [at for at in fresh if at not in kept]
        if refused:
            self._ids.abandon(verdict, refused)
        if kept:
            self._ids.committed(self._ids.take([(verdict, kept)]))
            self.values += [delivery.values[at] for at in kept]
        return sorted({*refused, *verdict.waiting})


@pytest.mark.guarantee("G1", section="6.1.1")
@settings(max_examples=60)
@given(st.integers(0, 1 << 32), st.sampled_from(["k00", "k03", "k06", "k11", "kzz"]), st.booleans(), st.booleans())
def test_results_arrive_once_after_a_split(seed: int, cut: str, before: bool, mixed: bool) -> None:
    """Both children send what they inherit under the parent's sequence.

    ``before``: the log has had the parent's delivery. ``mixed``: the results of one child are between the other's.
    """
    random = Random(seed)
    parent = driver_of(Results())
    parent.deliver(*((key, "", 1) for key in (random.sample(_KEYS, len(_KEYS)) if mixed else _KEYS)))
    parent.commit()
    parent.watermark(10)
    parent.commit()
    (send,) = parent.take(SendDelivery)
    log = _Log(random)
    if before:
        log.give(send.delivery)
    opened = [parts_of(parent, ALL_KEYS, _JOURNAL)]
    children = [
        child_of(opened, keys=keys) for keys in (KeyInterval(b"", cut.encode()), KeyInterval(cut.encode(), None))
    ]
    for _ in range(60):
        for child in children:
            child.handle(Resend())
            for sent in child.take(SendDelivery):
                child.handle(Acknowledged(sent.delivery.token, log.give(sent.delivery)))
    assert [len(child.state.outbox) for child in children] == [0, 0]
    assert sorted(log.values) == sorted(send.delivery.values)
