"""Times that are probably in another unit are refused (section 4.5)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.client.injector import Injector, InjectorSettings
from millwheel.client.injector.likelihood import UNIT_NANOSECONDS, is_likely, unlikely
from millwheel.model.time import from_milliseconds, from_seconds
from millwheel.sdk.errors import UsageError
from millwheel.server.dev_server import DevServer
from tests.injectors.conftest import Submit

NOW = from_seconds(1_795_000_000)
ADVICE = {unit: f"--unit {unit}" for unit in UNIT_NANOSECONDS}
STRICT = InjectorSettings(any_timestamp=False)


def test_a_time_in_seconds_is_recognised_as_such() -> None:
    assert unlikely(1_700_000_000, NOW, ADVICE, "say so") == (
        "1700000000 as microseconds is 1970-01-01T00:28:20Z; as seconds it is 2023-11-14T22:13:20Z: "
        "did you mean --unit s? If not, say so"
    )


@given(st.integers(-600_000_000, 1_826_000_000), st.sampled_from([*UNIT_NANOSECONDS]), st.sampled_from(["s", "ms"]))
def test_no_time_of_these_days_is_likely_in_two_units(at: int, meant: str, read: str) -> None:
    """A time from 1980 to a year ahead, written in one unit and read in another, is never taken."""
    number = at * 1_000_000_000 // UNIT_NANOSECONDS[meant]
    taken = number * UNIT_NANOSECONDS[read] // 1_000
    if not is_likely(at * 1_000_000, NOW) or abs(number) < 1_000:
        return
    assert is_likely(taken, NOW) is (meant == read)
    if meant != read:
        assert f"did you mean --unit {meant}?" in unlikely(taken, NOW, ADVICE, "", read)


def test_a_time_that_is_likely_in_no_unit_is_called_what_it_is() -> None:
    assert unlikely(5, NOW, ADVICE, "say so").endswith("before 1980; if that is meant, say so")
    assert "more than a year ahead" in unlikely(NOW * 3, NOW, ADVICE, "")
    assert (
        unlikely(5, NOW, ADVICE, "say so", "iso")
        == "1970-01-01T00:00:00.000005Z is before 1980; if that is meant, say so"
    )


async def test_an_injector_refuses_times_in_other_units(server: DevServer, submit: Submit) -> None:
    await submit("shop")
    order = {"user": "u", "number": 1}
    async with Injector("orders", address=server.address, settings=STRICT) as injector:
        for wrong in (1_700_000_000, 1_700_000_000_000, 1_700_000_000_000_000_000):
            with pytest.raises(
                UsageError, match=r"a record's timestamp of stream 'shop/orders': .*did you mean millwheel\.from_"
            ):
                await injector.send(order, timestamp=wrong)
            with pytest.raises(
                UsageError, match=r"^a record's .*\(record 1 of the call, of which no .*any_timestamp=True"
            ):
                await injector.send_many([order, order], [from_seconds(1_700_000_000), wrong])
            with pytest.raises(UsageError, match=r"the watermark of stream 'shop/orders'"):
                await injector.advance(wrong)
        await injector.send(order, timestamp=from_seconds(1_700_000_000))
        await injector.advance(from_milliseconds(1_700_000_000_000))
        assert injector.accepted == 1
