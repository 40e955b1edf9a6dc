"""Inputs and outputs: injectors, batches, subscribers that reconnect (sections 4.3, 5.2, 6.1.1)."""

from __future__ import annotations

import asyncio
from typing import Final

from simulation.scenarios.players import Node
from simulation.scenarios.scenario import Scenario
from simulation.scenarios.stage import Stage

__all__ = ["WAYS"]

_COUNTING: Final = (Node("b", "count", ["plates"], ["meals"]),)


async def _injector(stage: Stage) -> None:
    reader = await stage.reader("reader", "plates")
    stage.subscriber("guest", "meals")
    await reader.send("pear", 0, "pear 0", position=0)
    await reader.flush()
    await stage.until("out", "meals")
    stage.cut("w1", "reader")
    for position in (1, 2):
        await reader.send("pear", position, f"pear {position}", position=position)
        await stage.until("out", "meals")
    stage.kill("reader")
    stage.heal()
    stage.start("reader")
    await reader.open()
    for position in (1, 2, 3):
        await reader.send("pear", position, f"pear {position}", position=position)
    await reader.flush()
    await stage.until("out", "meals", "#4")


_INJECTOR: Final = Scenario(
    name="injector-replays",
    title="An injector dies before it hears an ACK, and starts over",
    text="""
        An injector reads a source with positions. Pear 0 was ACKed; pears 1 and 2 were sent, and B has counted them,
        but no ACK came through when the injector dies. Its next life cannot know what arrived, and sends everything
        from the first position that it is not sure of.

        The ids of its records are their positions in the source: B knows them, ACKs, and does nothing. Only
        pear 3 is new.
    """,
    guarantees="G1 (exactly once)",
    paper="sections 5.2 and 6.1.1",
    topology="plates → B (counts) → meals",
    nodes=_COUNTING,
    places={"B": "w1", "the log of meals": "w2"},
    shows={"plates": "inject flushed", "B": "hook deliver ack commit"},
    script=_injector,
)


async def _batch(stage: Stage) -> None:
    reader = await stage.reader("task", "plates")
    stage.subscriber("guest", "meals")
    first = [("red pear", 1.0), ("green pear", 2.0)]
    await reader.batch("orders", 0, first)
    stage.act("Spark's driver commits batch 0")
    await stage.ask(lambda control: control.commit_batch("orders", 0))
    await reader.batch("orders", 1, [("red pear", 3.0)])
    stage.act("Spark's driver commits batch 1")
    await stage.ask(lambda control: control.commit_batch("orders", 1))
    await asyncio.sleep(2.0)
    stage.act("a task of batch 0 that was thought dead comes to life, and sends it again")
    await reader.batch("orders", 0, list(reversed(first)))
    await asyncio.sleep(1.0)


_BATCH: Final = Scenario(
    name="batch-replayed",
    title="A Spark task sends its batch again, long after its ids were forgotten",
    text="""
        Records of a Spark query are known by their batch, and by names that are unique within it: another batch may
        have a red pear, too. Ids of a batch are kept until the next one begins.

        When a task of batch 0 sends it once more, in another order, B has none of its ids any more. But B remembers
        that this query is past batch 0: everything of it is in. It ACKs, and counts nothing.
    """,
    guarantees="G1 (exactly once), G13 (bounded memory)",
    paper="section 6.1.1 (design: batches of a Spark query)",
    topology="plates → B (counts) → meals",
    nodes=_COUNTING,
    places={"B": "w1", "the log of meals": "w2"},
    shows={"plates": "inject flushed", "B": "hook deliver ack commit"},
    script=_batch,
)


async def _subscriber(stage: Stage) -> None:
    reader = await stage.reader("reader", "plates")
    stage.subscriber("guest", "meals", seconds=0.5)
    await reader.send("pear", 1)
    await stage.until("read", "meals")
    await reader.send("pear", 2)
    await stage.until("out", "meals", "#2")
    stage.kill("guest")
    stage.start("guest")
    await stage.until("read", "meals")
    stage.kill("w2")
    await reader.send("pear", 3)
    await stage.until("read", "meals", "offset 2")


_SUBSCRIBER: Final = Scenario(
    name="subscriber-returns",
    title="A subscriber dies between reading and ACKing; then the worker dies that it reads from",
    text="""
        A guest reads a stream under a durable cursor. It dies after it has read the second pear, and before it has
        ACKed it. Its next life reads on behind the last ACK: the second pear again, at the same offset, by which it
        can be known. Then the worker that keeps the stream's log dies; the guest finds the log where
        it has gone, and reads the third pear as if nothing had been.
    """,
    guarantees="G1 (exactly once; at the subscriber: at least once, with offsets)",
    paper="section 4.3",
    topology="plates → B (counts) → meals",
    nodes=_COUNTING,
    places={"B": "w1", "the log of meals": "w2"},
    shows={"plates": "inject", "the log of meals": "assign serves", "meals": "out read", "w2.0": "lease"},
    script=_subscriber,
)


async def _clock(stage: Stage) -> None:
    reader = await stage.reader("reader", "plates")
    await reader.send("pear", 1)
    await reader.flush()
    await asyncio.sleep(1.0)
    stage.set_clock("w2", +2.0)
    await reader.send("pear", 2)
    await reader.flush()
    await asyncio.sleep(1.0)
    stage.set_clock("w2", -2.0)
    await reader.send("pear", 3)
    await reader.flush()
    stage.subscriber("guest", "meals")
    await stage.until("read", "meals", "offset 2")


_CLOCK: Final = Scenario(
    name="clock-set-wrong",
    title="A machine's clock is set two hours ahead, and back",
    text="""
        Where nobody reads a stream, its log keeps what comes for an hour. The clock of the worker that has the log
        goes wrong by two hours, and is put right. Pears that were there before, came meanwhile, and came after it, are
        seconds old: age is counted by a clock that nobody sets, and the guest who comes then reads all three.
    """,
    guarantees="G1 (nothing is lost that is to be kept), G13 (bounded memory)",
    paper="section 4.3",
    topology="plates → B (counts) → meals",
    nodes=_COUNTING,
    places={"B": "w1", "the log of meals": "w2"},
    shows={"plates": "inject", "meals": "out read"},
    script=_clock,
)

WAYS: Final = (_INJECTOR, _BATCH, _SUBSCRIBER, _CLOCK)
