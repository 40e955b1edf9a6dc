"""Answers to a sending host: ACKs at once, and refusals as one Resend after a growing delay."""

from __future__ import annotations

import asyncio

import pytest

from millwheel.model.backoff import Backoff
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.messages import Acknowledged, Deposed, GiveUp, Halted, Refused, Resend
from millwheel.worker.process import refused_batches
from millwheel.worker.process.destinations import HostChannel
from millwheel.worker.process.host import CoreHost
from millwheel.worker.process.run_queue import RunQueue
from tests.faulty_store import FaultyStore
from tests.patience import until
from tests.worker.doubles import ScriptedCore, ScriptedPeers

ACKED = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
FULL = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL
NOT_OWNER = DeliveryOutcome.DELIVERY_OUTCOME_NOT_OWNER
OUT_OF_ORDER = DeliveryOutcome.DELIVERY_OUTCOME_OUT_OF_ORDER
SUPERSEDED = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER


def sender() -> tuple[ScriptedCore, HostChannel, ScriptedPeers]:
    core, peers = ScriptedCore(), ScriptedPeers()
    host = CoreHost("u.1.j1", core, FaultyStore(), peers, RunQueue(asyncio.get_running_loop()).share("t"))
    return core, HostChannel(host), peers


async def resent(core: ScriptedCore, times: int) -> None:
    await until(lambda: len(core.of(Resend)) == times)


async def test_acks_come_at_once_and_name_what_is_left() -> None:
    core, channel, _ = sender()
    channel.reply(4, ACKED, [1, 2], "")
    channel.reply(4, ACKED, (), "")
    await until(lambda: len(core.of(Acknowledged)) == 2)
    assert [(event.token, list(event.remaining)) for event in core.of(Acknowledged)] == [(4, [1, 2]), (4, [])]


async def test_refusals_are_retried_together_and_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    core, channel, _ = sender()
    delays = list[float]()

    class AtOnce(Backoff):
        def delay(self, failures: int, chance: float) -> float:
            delays.append(self.step(failures))
            return 0.0

    monkeypatch.setattr(refused_batches, "BACKOFF", AtOnce(refused_batches.BACKOFF.first))
    for round_number in range(4):
        channel.reply(7, FULL, [0], "full")
        channel.reply(5, NOT_OWNER, (), "moved")
        await resent(core, round_number + 1)
    assert [event.tokens for event in core.of(Resend)] == [[5, 7]] * 4
    assert delays == [delays[0] * 2**number for number in range(4)]
    channel.reply(9, ACKED, (), "")
    channel.reply(7, FULL, [0], "full")
    await resent(core, 5)
    assert delays[4] == delays[0], "an ACK says that the receiver is well again"


@pytest.mark.guarantee("G13", section="4.1")
async def test_a_partly_refused_batchs_accepted_part_is_not_sent_again() -> None:
    core, channel, _ = sender()
    channel.reply(7, FULL, [1, 3], "full")
    channel.reply(7, FULL, [4], "full")
    channel.reply(8, FULL, [0], "full")
    channel.reply(8, NOT_OWNER, (), "moved: nobody has any of it")
    channel.reply(9, NOT_OWNER, (), "moved")
    channel.reply(9, FULL, [0], "of a copy")
    await resent(core, 1)
    (event,) = core.of(Resend)
    assert (event.tokens, event.refused) == ([7, 8, 9], {7: {1, 3, 4}})


@pytest.mark.guarantee("G15", section="4.1")
async def test_a_sender_learns_at_once_what_to_send_nothing_behind() -> None:
    """The answer also says whether the receiver has all earlier batches.

    That holds after a refusal for lack of room, and no other.
    """
    core, channel, _ = sender()
    channel.reply(5, FULL, (), "full")
    channel.reply(6, OUT_OF_ORDER, (), "begin again")
    channel.reply(7, FULL, [1], "a copy")
    channel.reply(8, FULL, (), "full")
    channel.reply(8, NOT_OWNER, (), "moved")
    await asyncio.sleep(0)
    assert [event.token for event in core.of(Halted)] == [5, 6, 8, 8]
    assert core.of(Resend) == []
    await resent(core, 1)
    (event,) = core.of(Resend)
    assert (event.tokens, event.refused, event.full) == ([5, 6, 7, 8], {7: {1}}, {5})


@pytest.mark.paper(section="7.1")
async def test_refused_records_are_sent_again_at_once_after_a_move() -> None:
    core, channel, _ = sender()
    for round_number in range(3):
        channel.reply(7, FULL, [0], "full")
        await resent(core, round_number + 1)
    channel.reply(7, NOT_OWNER, (), "moved")
    channel.refused.resend_now()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(core.of(Resend)) == 4
    channel.refused.resend_now()
    await asyncio.sleep(0.3)
    assert len(core.of(Resend)) == 4, "there is nothing else"


@pytest.mark.guarantee("G3", section="6.2")
async def test_a_refused_sequencer_ends_the_sender() -> None:
    core, channel, peers = sender()
    core.react = lambda event: [GiveUp(event.reason)] if type(event) is Refused else ()
    channel.reply(7, SUPERSEDED, (), "sequencer 3 has a successor")
    await until(lambda: peers.lost_hosts)
    assert core.of(Refused) == [Refused(7, "a receiver refused the sequencer: sequencer 3 has a successor")]
    assert len(core.of(Deposed)) == 1
    ((host, reason),) = peers.lost_hosts
    assert "successor" in reason
    assert host.fault == "", "its successor is there already"


@pytest.mark.guarantee("G13")
async def test_persistent_refusals_are_reported_once_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A log over its cap names the cursor that keeps it full. Regression: the reason was not reported."""
    monkeypatch.setattr("millwheel.worker.process.refused_batches.BACKOFF", Backoff(0.02, 0.04))
    core, channel, _ = sender()
    for round_number in range(6):
        channel.reply(7, FULL, [0], "the slowest cursor is 'c'")
        await resent(core, round_number + 1)
    assert caplog.text.count("the slowest cursor is 'c'") == 1


async def test_refusals_of_a_move_are_no_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: each move by the balancer made the log warn of deliveries that "are refused"."""
    monkeypatch.setattr("millwheel.worker.process.refused_batches.BACKOFF", Backoff(0.02, 0.04))
    core, channel, _ = sender()
    for round_number in range(6):
        channel.reply(7, OUT_OF_ORDER, (), "what comes before it is not known here")
        await resent(core, round_number + 1)
    assert "what comes before it" not in caplog.text
    monkeypatch.setattr("millwheel.worker.process.refused_batches.MOVE_SECONDS", 0.0)
    channel.reply(7, OUT_OF_ORDER, (), "what comes before it is not known here")
    await resent(core, 7)
    assert caplog.text.count("what comes before it") == 1, "no move takes so long"


async def test_changes_of_the_map_do_not_hide_lasting_refusals(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: each move of any interval made the refusals begin again, so that none was ever warned of."""
    monkeypatch.setattr("millwheel.worker.process.refused_batches.BACKOFF", Backoff(0.02, 0.02))
    monkeypatch.setattr("millwheel.worker.process.refused_batches.MOVE_SECONDS", 0.05)
    core, channel, _ = sender()
    channel.reply(7, OUT_OF_ORDER, (), "begin again")
    channel.refused.resend_now()
    await resent(core, 1)
    assert "begin again" not in caplog.text
    await asyncio.sleep(0.06)
    channel.reply(7, OUT_OF_ORDER, (), "begin again")
    assert caplog.text.count("begin again") == 1
