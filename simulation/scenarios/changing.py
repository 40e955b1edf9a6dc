"""Intervals that move, split or merge while another fault happens (sections 4.1 and 7.1)."""

from __future__ import annotations

import asyncio
from typing import Final

from simulation.scenarios.players import Node
from simulation.scenarios.scenario import Scenario
from simulation.scenarios.stage import Stage

__all__ = ["CHANGING"]

_COUNTING: Final = (Node("a", "pass", ["plates"], ["fruit"]), Node("b", "count", ["fruit"], ["meals"]))


async def _split(stage: Stage) -> None:
    reader = await stage.reader("reader", "plates")
    stage.subscriber("guest", "meals")
    for name in ("apple", "pear"):
        await reader.send(name, 1, f"1st {name}")
    await stage.until("out", "meals", "pear")
    await asyncio.sleep(0.5)
    stage.hold("store", "w2")
    stage.kill("w1")
    await stage.until("assign", "B")
    await asyncio.sleep(0.2)
    await stage.split("B", "m", "w0")
    await stage.until("serves", "B[m..)")
    stage.release("store", "w2")
    await stage.until("serves", "B[..m)")
    for name in ("apple", "pear"):
        await reader.send(name, 2, f"2nd {name}")
    await stage.until("out", "meals", "#2")
    await stage.until("out", "meals", "#2")


_SPLIT: Final = Scenario(
    name="split-during-takeover",
    title="An interval is split while its new owner is still opening it",
    text="""
        B has counted an apple and a pear, when its worker dies. B is given to worker 2, whose request to fence the
        journal is held up on its way; and before it has arrived, B is split at "m".

        The upper half opens first: it seals the journal of the whole, for good, and starts from what that holds. When
        worker 2's old request comes to the store at last, it is refused, for a sealed journal takes no owner; the
        lower half goes on from the same sealed journal. Each half knows its own count, and nothing is counted twice.
    """,
    guarantees="G11 (coverage), G3 (single writer), G1 (exactly once)",
    paper="sections 6.2 and 7.1",
    topology="plates → A (passes on) → B (counts) → meals",
    nodes=_COUNTING,
    places={"A": "w0", "B": "w1", "the log of meals": "w0"},
    shows={
        "plates": "inject",
        "B": "hook deliver ack commit assign reshape fence refused seal accept serves lets-go weaned",
        "meals": "out",
        "w1.0": "lease",
    },
    script=_split,
)


async def _merge(stage: Stage) -> None:
    reader = await stage.reader("reader", "plates")
    stage.subscriber("guest", "meals")
    for name in ("apple", "pear"):
        await reader.send(name, 1)
    await reader.flush()
    await stage.merge("B", "w2")
    await stage.until("out", "meals")
    await stage.until("out", "meals")
    await stage.until("weaned", "B")


_MERGE: Final = Scenario(
    name="merge-during-stragglers",
    title="Two intervals are merged while both wait for stragglers",
    text="""
        B is two intervals, at "m". Its productions are weak, and C is slow: after a second each half has saved its
        production in its own journal, and ACKed its sender. Then the halves are merged, and the whole goes to
        another worker.

        The whole starts from both sealed journals. It finds a production in each, and sends them to C again, under the
        same ids: C, which is still at work on them, takes neither twice. Once C has ACKed both, the whole needs
        nothing of its parents any more, and their journals may go.
    """,
    guarantees="G10 (weak productions), G11 (coverage), G1 (exactly once)",
    paper="sections 6.1.3 and 7.1",
    topology="plates → B (passes on, weakly) → C (takes 6 s) → meals",
    nodes=(
        Node("b", "pass", ["plates"], ["cut"], {"strong": False, "straggler_delay": 1}),
        Node("c", "slow", ["cut"], ["meals"], seconds=6),
    ),
    places={"B": "w1", "C": "w0", "the log of meals": "w0"},
    cuts={"B": "m"},
    shows={
        "plates": "inject flushed",
        "B": "hook commit reshape seal fence accept serves lets-go weaned",
        "C": "hook deliver untaken ack commit",
        "meals": "out",
    },
    script=_merge,
)


async def _watch(stage: Stage) -> None:
    reader = await stage.reader("reader", "plates")
    stage.subscriber("guest", "meals")
    await reader.send("pear", 1, "1st pear")
    await stage.until("out", "meals")
    stage.cut("coordinator", "w0")
    await stage.move("B", "w2")
    await stage.until("serves", "B")
    await reader.send("pear", 2, "2nd pear")
    await stage.until("untaken", "B")
    await asyncio.sleep(0.5)
    stage.heal()
    await stage.until("out", "meals", "#2")


_WATCH: Final = Scenario(
    name="move-under-lost-watch",
    title="A sender has not heard that an interval has moved",
    text="""
        B moves from worker 1 to worker 2, while A's worker hears nothing of the coordinator. So A sends the next pear
        where B used to be; worker 1 does not take it, and says that B is not its own any more. A keeps the pear, and
        with it its watermark, until it learns where B is.
    """,
    guarantees="G11 (coverage), G1 (exactly once)",
    paper="section 7.1",
    topology="plates → A (passes on) → B (counts) → meals",
    nodes=_COUNTING,
    places={"A": "w0", "B": "w1", "the log of meals": "w2"},
    shows={"plates": "inject", "B": "hook deliver ack commit assign fence serves lets-go untaken", "meals": "out"},
    script=_watch,
)


async def _master(stage: Stage) -> None:
    reader = await stage.reader("reader", "plates")
    stage.subscriber("guest", "meals")
    await reader.send("pear", 1, "1st pear")
    await stage.until("out", "meals")
    leader = stage.telling.leader
    stage.hold("coordinator", leader)
    asking = asyncio.get_running_loop().create_task(stage.move("B", "w2", request="the operator's one request"))
    await asyncio.sleep(1.0)
    stage.kill(leader)
    stage.release("coordinator", leader)
    await stage.until("serves", "B")
    await reader.send("pear", 2, "2nd pear")
    await stage.until("out", "meals", "#2")
    await stage.until("leader", "master")
    await asking
    stage.act("the operator's command has ended: done")
    stage.start(leader)
    await asyncio.sleep(5.0)


_MASTER: Final = Scenario(
    name="master-killed-amid-move",
    title="The leading master dies between asking for a move and hearing of it",
    text="""
        An operator moves B to worker 2. The leading master has asked the coordinator to write it down, when it is
        killed; its request arrives after its death. It counts, for nobody else leads yet: worker 2 has B, and
        data flow without a master.

        The operator's command has had no answer. It asks again, under the same request id, until the standby
        leads; and that one finds that it is done already, and moves nothing a second time.
    """,
    guarantees="G11 (coverage), G3 (single writer)",
    paper="sections 4.1 and 7.1",
    topology="plates → A (passes on) → B (counts) → meals",
    nodes=_COUNTING,
    places={"A": "w0", "B": "w1", "the log of meals": "w0"},
    shows={
        "plates": "inject",
        "B": "hook ack assign fence accept serves lets-go",
        "master": "leader",
        "meals": "out",
    },
    script=_master,
)

CHANGING: Final = (_SPLIT, _MERGE, _WATCH, _MASTER)
