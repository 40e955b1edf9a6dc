"""When a subscriber's ACKs are sent: the first at once, later ones together."""

from __future__ import annotations

import asyncio

import pytest

from millwheel.client.subscription.acks import AckSender
from tests.patience import patience, until


class Log:
    """What a log gets. While ``gate`` is closed, a message is being written."""

    def __init__(self) -> None:
        self.got: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.writing = 0
        self.calls = True

    async def send(self, below: int) -> bool:
        if not self.calls:
            return False
        assert not self.writing, "gRPC takes one message after the other"
        self.writing += 1
        await self.gate.wait()
        self.writing -= 1
        self.got.append(below)
        return True


@pytest.mark.guarantee("G8", section="4.3")
async def test_the_first_ack_goes_at_once_and_the_last_one_soon() -> None:
    log = Log()
    acks = AckSender(log.send, 0)
    for below in (1, 99, 100, 50):
        await acks.ack(below)
    assert log.got == [1]
    await until(lambda: log.got == [1, 100])
    await asyncio.sleep(0.03)
    assert log.got == [1, 100], "nothing is sent twice"
    await acks.ack(101)
    assert log.got == [1, 100, 101]
    await acks.close()


@pytest.mark.guarantee("G8", section="4.3")
@pytest.mark.parametrize(("window", "most"), [(0, 1_000), (400, 100), (8, 2), (1, 0)])
async def test_an_ack_waits_for_a_part_of_the_window_at_most(window: int, most: int) -> None:
    log = Log()
    acks = AckSender(log.send, window)
    await acks.ack(10)
    await acks.ack(10 + most)
    assert log.got == [10]
    await acks.ack(11 + most)
    assert log.got == [10, 11 + most]
    await acks.close()


async def test_an_ack_follows_one_that_is_being_written() -> None:
    log = Log()
    acks = AckSender(log.send, 1)
    log.gate.clear()
    sending = [asyncio.ensure_future(acks.ack(below)) for below in (1, 2, 3)]
    await until(lambda: log.writing)
    log.gate.set()
    await asyncio.gather(*sending)
    assert log.got == [1, 3]
    await acks.close()


@pytest.mark.guarantee("G8", section="4.3")
async def test_an_ack_whose_caller_gives_up_is_sent_soon() -> None:
    log = Log()
    acks = AckSender(log.send, 4)
    await acks.ack(1)
    log.gate.clear()
    writing = asyncio.ensure_future(acks.ack(3))
    await until(lambda: log.writing)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await acks.ack(5)
    log.gate.set()
    await writing
    await until(lambda: log.got == [1, 3, 5])
    await acks.close()


@pytest.mark.guarantee("G8", section="4.3")
async def test_an_ack_that_no_call_takes_is_sent_later() -> None:
    log = Log()
    acks = AckSender(log.send, 4)
    log.calls = False
    await acks.ack(5)
    await acks.flush()
    log.calls = True
    await acks.flush()
    assert log.got == [5]
    await acks.close()


async def test_a_flush_and_a_close_send_what_waits() -> None:
    log = Log()
    acks = AckSender(log.send, 0)
    await acks.ack(1)
    await acks.ack(2)
    await acks.flush()
    assert log.got == [1, 2]
    await acks.ack(3)
    await acks.close()
    assert log.got == [1, 2, 3]
    await asyncio.sleep(0.03)
    assert log.got == [1, 2, 3]


async def test_a_close_does_not_wait_for_a_log_that_takes_nothing() -> None:
    log = Log()
    acks = AckSender(log.send, 0)
    await acks.ack(1)
    await acks.ack(2)
    log.gate.clear()
    async with asyncio.timeout(patience(5)):
        await acks.close()
    assert log.got == [1]


async def test_what_a_call_began_with_is_not_sent_again() -> None:
    log = Log()
    acks = AckSender(log.send, 0)
    await acks.ack(1)
    await acks.ack(7)
    acks.sent(acks.newest)
    await acks.flush()
    assert log.got == [1]
    await acks.ack(8)
    await acks.flush()
    assert log.got == [1, 8]
    await acks.close()
