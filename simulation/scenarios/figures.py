"""The paper's figures 11 and 12, and related cases: strong productions, unknown outcomes, old reports."""

from __future__ import annotations

import asyncio
from typing import Final

from simulation.scenarios.players import Node
from simulation.scenarios.scenario import Scenario
from simulation.scenarios.stage import Stage

__all__ = ["FIGURES"]


async def _figure_11(stage: Stage) -> None:
    reader = await stage.reader("reader", "plates")
    stage.subscriber("guest", "meals")
    await reader.send("pear", 1)
    await stage.until("ack", "B")
    stage.kill("w1")
    stage.start("w1")
    await stage.until("out", "meals")
    await asyncio.sleep(1.0)


_FIGURE_11: Final = Scenario(
    name="figure-11-weak-straggler",
    title="Figure 11: a straggler is saved, so that its sender need not wait",
    text="""
        A produces to B, and B to C. B's productions are weak: it sends them on before anything is stored, and would
        ACK A when C has ACKed. But C is slow. After a second B saves the production in its own commit, and ACKs A,
        which can forget the pear.

        Then B's worker is killed and starts again. B finds the production in its journal, and sends it to C again,
        under the same id: C, which is still at work on the first copy, takes no second one, and ACKs when it is done.
    """,
    guarantees="G10 (weak productions), G1 (exactly once)",
    paper="section 6.1.3, figure 11",
    topology="plates → A (passes on) → B (passes on, weakly) → C (takes 5 s) → meals",
    nodes=(
        Node("a", "pass", ["plates"], ["peeled"]),
        Node("b", "pass", ["peeled"], ["cut"], {"strong": False, "straggler_delay": 1}),
        Node("c", "slow", ["cut"], ["meals"], seconds=5),
    ),
    places={"A": "w0", "B": "w1", "C": "w2", "the log of meals": "w0"},
    shows={
        "plates": "inject",
        "A": "hook",
        "B": "hook deliver ack commit assign fence accept serves",
        "C": "hook deliver ack commit untaken",
        "meals": "out",
    },
    script=_figure_11,
)


async def _figure_12(stage: Stage) -> None:
    reader = await stage.reader("reader", "plates")
    stage.subscriber("guest", "meals")
    stage.hold("store", "w1")
    await reader.send("pear", 1)
    await stage.until("ask", "B")
    stage.pause("w1")
    await stage.until("serves", "B")
    stage.release("store", "w1")
    await stage.until("refused", "B")
    stage.resume("w1")
    await stage.until("commit", "B")
    await reader.promise(20)
    await stage.until("out", "meals")


_FIGURE_12: Final = Scenario(
    name="figure-12-zombie",
    title="Figure 12: a zombie's write arrives after its successor has read everything",
    text="""
        A sends a pear to B, which counts it and sets a timer. B's owner, worker 1, asks the store to commit that; the
        request is held up on the wire, and worker 1 is stopped for longer than its lease. B is given to worker 2 (the
        paper's B-prime), which fences B's journal and reads the pending timers. Only then does the old
        request arrive.

        In figure 12 it is applied, A is ACKed, and B-prime never knows of the timer: it is orphaned. Here the fence
        refuses the write, because the journal is held by a newer sequencer. Nobody was ACKed, so A sends the pear
        again; B-prime counts it, sets the timer, and fires it.
    """,
    guarantees="G3 (single writer), G1 (exactly once), G6 (timers survive)",
    paper="section 6.2, figure 12",
    topology="plates → A (passes on) → B (counts until t=10, by a timer) → meals",
    nodes=(Node("a", "pass", ["plates"], ["fruit"]), Node("b", "window", ["fruit"], ["meals"], seconds=10)),
    places={"A": "w0", "B": "w1", "the log of meals": "w2"},
    shows={
        "plates": "inject promise",
        "B": "hook deliver ack ask commit refused assign fence accept serves lets-go untaken",
        "meals": "out",
        "w1.0": "lease",
    },
    script=_figure_12,
)


async def _strong(stage: Stage) -> None:
    reader = await stage.reader("reader", "plates")
    stage.subscriber("guest", "meals")
    await reader.send("apple", 1)
    await stage.until("out", "meals")
    stage.cut("w2", "w1")
    await reader.send("pear", 2)
    await stage.until("ack", "C", "pear")
    stage.kill("w1")
    stage.heal()
    await stage.until("serves", "B")
    await stage.until("ack", "C")
    await asyncio.sleep(1.0)


_STRONG: Final = Scenario(
    name="strong-production",
    title="A strong production is sent again, and is the same",
    text="""
        An apple has passed B and C. Then B counts a pear, and stores what it produces in the same commit as the count;
        only then does it send it to C. C takes it and ACKs, but the ACK is lost, and B's worker dies.

        The next owner of B finds the production in the journal. It need not, and does not, run the user's code
        again: it sends the same bytes under the same id. C knows the id, and ACKs without doing anything.
    """,
    guarantees="G9 (strong productions), G2 (atomicity), G1 (exactly once)",
    paper="section 6.1.2",
    topology="plates → B (counts) → C (passes on) → meals",
    nodes=(Node("b", "count", ["plates"], ["counts"]), Node("c", "pass", ["counts"], ["meals"])),
    places={"B": "w1", "C": "w2", "the log of meals": "w2"},
    shows={
        "plates": "inject",
        "B": "hook commit assign fence serves",
        "C": "hook deliver ack commit",
        "meals": "out",
    },
    script=_strong,
)


async def _ambiguous(stage: Stage) -> None:
    reader = await stage.reader("reader", "plates")
    stage.subscriber("guest", "meals")
    stage.cut("store", "w1")
    await reader.send("pear", 1)
    await stage.until("commit", "B")
    await asyncio.sleep(1.0)
    stage.heal()
    await stage.until("ack", "B")
    await stage.until("out", "meals")


_AMBIGUOUS: Final = Scenario(
    name="unknown-outcome",
    title="A commit of which nobody hears whether it took place",
    text="""
        B asks the store to commit a pear. The store does, but its answer is lost: for B the outcome is unknown, and
        neither yes nor no may be assumed. So B asks again, for the identical bytes. The store refuses, and by whose
        sequencer and which commit it holds B knows that it was its own: the first attempt had taken effect.
    """,
    guarantees="G2 (atomicity), G1 (exactly once)",
    paper="section 6.1.2 (design: ambiguous time-outs are settled by repeating the identical bytes)",
    topology="plates → A (passes on) → B (counts) → meals",
    nodes=(Node("a", "pass", ["plates"], ["fruit"]), Node("b", "count", ["fruit"], ["meals"])),
    places={"A": "w0", "B": "w1", "the log of meals": "w2"},
    shows={"plates": "inject", "B": "hook deliver ask commit refused ack", "meals": "out"},
    script=_ambiguous,
)


async def _old_report(stage: Stage) -> None:
    reader = await stage.reader("reader", "plates")
    stage.subscriber("guest", "meals")
    await reader.promise(5)
    await stage.until("watermark", "B")
    stage.cut("coordinator", "w1")
    await stage.move("B", "w2")
    await stage.until("serves", "B")
    await reader.send("pear", 5)
    await stage.until("hook", "C")
    await reader.flush()
    await reader.promise(20)
    await stage.until("unheard", "B")
    await stage.until("lets-go", "B")
    stage.heal()
    await stage.until("watermark", "B", "t=20")
    await stage.until("out", "meals")


_OLD_REPORT: Final = Scenario(
    name="old-report",
    title="A deposed owner tells the authority what it believes",
    text="""
        B is moved from worker 1 to worker 2, but worker 1 does not hear of it. A pear comes to B at worker 2, which
        sends it to C; until C has it, nobody may be told that B is past t=5. Worker 1 knows nothing of the pear. It
        hears that A is at t=20, has nothing pending, and reports t=20 for B.

        A store's fence alone would not keep that from moving the low watermark past the pear. The authority does: it
        has accepted worker 2's sequencer, before worker 2 began, and refuses reports with an older one.
    """,
    guarantees="G4 (takeover order), G7 (watermark safety)",
    paper="sections 6.2 and 7.2",
    topology="plates → A (passes on) → B (passes on) → C (takes 3 s) → meals",
    nodes=(
        Node("a", "pass", ["plates"], ["peeled"]),
        Node("b", "pass", ["peeled"], ["cut"]),
        Node("c", "slow", ["cut"], ["meals"], seconds=3),
    ),
    places={"A": "w0", "B": "w1", "C": "w0", "the log of meals": "w0"},
    shows={
        "plates": "inject promise",
        "A": "watermark",
        "B": "watermark deliver ack assign fence accept serves lets-go unheard",
        "C": "hook",
        "meals": "out",
    },
    script=_old_report,
)

FIGURES: Final = (_FIGURE_11, _FIGURE_12, _STRONG, _AMBIGUOUS, _OLD_REPORT)
