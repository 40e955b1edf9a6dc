"""When an injector sends a batch: at once, or some time after the batch before it (section 5.2)."""

from __future__ import annotations

from millwheel.client.injector.messages import DeliveryAnswered, Tick
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
