"""When an injector sends a batch: at once, or some time after the batch before it (section 5.2)."""

from __future__ import annotations

from millwheel.client.injector.messages import DeliveryAnswered, Limits, Tick
from tests.injectors.test_core import ACKED, add, opened, sends, step


def test_a_record_goes_out_at_once_when_none_is_on_its_way() -> None:
    core = opened()
    (first,) = sends(add(core, [1]))
    assert first.ids == [1]
    assert add(core, [2], 10) == []
    assert add(core, [3], 20) == []
    (both,) = sends(step(core, DeliveryAnswered((first.token,), ACKED), 30))
    assert both.ids == [2, 3]


def test_a_record_waits_for_others_no_longer_than_the_linger() -> None:
    core = opened()
    add(core, [1])
    add(core, [2], 100)
    assert core.next_deadline() == 2_000
    assert sends(step(core, Tick(), 1_999)) == []
    (late,) = sends(step(core, Tick(), 2_000))
    assert late.ids == [2]


def test_a_record_that_comes_after_the_linger_goes_out_at_once() -> None:
    core = opened()
    add(core, [1])
    (alone,) = sends(add(core, [2], 2_000))
    assert alone.ids == [2]
    assert sends(add(core, [3], 2_001)) == []
    assert core.next_deadline() == 4_000


def test_a_receiver_that_falls_behind_gets_larger_batches() -> None:
    """Regression: a server for which a batch each linger was too much stayed 80 ms behind, with two records in each."""
    core = opened(Limits(linger=2_000))
    add(core, [0])
    sent = [sends(add(core, [number], 2_000 * number)) for number in range(1, 5)]
    assert [len(batches) for batches in sent] == [1, 1, 1, 1]
    assert sends(add(core, [5], 10_000)) == [], "five are in flight"
    assert core.next_deadline() == 8_000 + 2_500
    for token in range(8):
        add(core, [10 + token], 10_000 + token)
    (late,) = sends(step(core, Tick(), 10_500))
    assert late.ids == [5, *range(10, 18)]
