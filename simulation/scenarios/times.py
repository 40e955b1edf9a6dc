"""Low watermarks and late records (sections 4.5, 5.2, 7.2)."""

from __future__ import annotations

import asyncio
from typing import Final

from simulation.scenarios.players import Node
from simulation.scenarios.scenario import Scenario
from simulation.scenarios.stage import Stage

__all__ = ["TIMES"]


async def _authority(stage: Stage) -> None:
    reader = await stage.reader("reader", "plates")
    stage.subscriber("guest", "meals")
    await reader.send("pear", 12)
    await reader.promise(20)
    await stage.until("watermark", "B", "t=20")
    await reader.send("apple", 5)
    await stage.until("out", "meals", "apple")
    for name in ("t0", "t1"):
        stage.kill(name)
    await reader.send("apple", 6)
    await reader.promise(30)
    await stage.until("out", "meals", "apple")
    await asyncio.sleep(1.0)
    for name in ("t0", "t1"):
        stage.start(name)
    await stage.until("watermark", "B", "t=30")
    await reader.send("apple", 7)
    await stage.until("out", "meals", "apple")


_AUTHORITY: Final = Scenario(
    name="authority-restart",
    title="The authority is gone for a while, and late records come before, meanwhile and after",
    text="""
        B's low watermark is t=20, so an apple of t=5 is late, and B is told so. Then both authority processes die.
        Nothing stops: records are processed, the watermark just stays where everybody has it, and what was late
        is late. The injector's promise of t=30 has to wait.

        The authority starts again from its journal, with the values that it had shown, not with what it happens to
        hear first; then it hears of t=30, and goes on. At no moment was a smaller value shown than before.
    """,
    guarantees="G7 (watermark safety), G14 (late records), G8 (watermark liveness)",
    paper="sections 4.5 and 7.2",
    topology="plates → B (counts) → meals",
    nodes=(Node("b", "count", ["plates"], ["meals"]),),
    places={"B": "w1", "the log of meals": "w2"},
    shows={
        "plates": "inject promise watermark",
        "B": "hook watermark",
        "meals": "out",
        "authority": "leader",
    },
    script=_authority,
)


async def _policies(stage: Stage) -> None:
    reader = await stage.reader("reader", "plates")
    for stream in ("all", "punctual", "sorted", "belated"):
        stage.subscriber(f"guest of {stream}", stream)
    await reader.send("pear", 12)
    await reader.promise(20)
    await asyncio.sleep(0.5)
    await reader.send("pear", 5, "belated pear")
    await asyncio.sleep(0.2)
    await reader.send("pear", 25)
    await reader.flush()
    await asyncio.sleep(1.0)


_POLICIES: Final = Scenario(
    name="late-records",
    title="Three ways to treat what comes late",
    text="""
        Three computations count the same pears. One of the pears is late: it is of t=5, and the low watermark is t=20
        by then. P is given it as any other, marked as late, and may correct what it has said. D has it
        dropped (and counted). V has it diverted, as it came, to a stream of its own.
    """,
    guarantees="G14 (late records)",
    paper="section 4.5",
    topology="plates → P (counts) → all; plates → D (counts, drops late ones) → punctual; "
    "plates → V (counts, diverts late ones to belated) → sorted",
    nodes=(
        Node("p", "count", ["plates"], ["all"]),
        Node("d", "count", ["plates"], ["punctual"], {"late": "drop"}),
        Node("v", "count", ["plates"], ["sorted", "belated"], {"late": "belated"}),
    ),
    places={"P": "w0", "D": "w1", "V": "w2"},
    shows={"plates": "inject promise", "P": "hook", "D": "hook", "V": "hook", "belated": "out"},
    script=_policies,
)


async def _idle(stage: Stage) -> None:
    one = await stage.reader("kitchen", "plates")
    other = await stage.reader("garden", "plates")
    stage.subscriber("guest", "meals")
    await one.send("pear", 3)
    await one.flush()
    await one.promise(20)
    await asyncio.sleep(0.2)
    await other.promise(5)
    await stage.until("watermark", "B", "t=5")
    await asyncio.sleep(1.0)
    await other.idle()
    await stage.until("out", "meals")
    await stage.until("watermark", "B", "t=20")
    await other.send("apple", 7)
    await stage.until("hook", "B", "apple")
    await other.promise(25)
    await one.promise(30)
    await stage.until("watermark", "B", "t=25")


_IDLE: Final = Scenario(
    name="idle-injector",
    title="An injector with nothing to send holds nothing up",
    text="""
        Two injectors feed a stream; its low watermark is the smaller of theirs. The garden has promised no more than
        t=5, and then has nothing to send: by saying so, it leaves the minimum, and the window of the kitchen's pear
        closes. When it has something again it joins where the others are: its apple of t=7 is late by then, and
        a window that was closed is opened once more for it.
    """,
    guarantees="G8 (watermark liveness), G7 (watermark safety), G6 (timers)",
    paper="section 5.2",
    topology="plates → B (counts until t=10, by a timer) → meals",
    nodes=(Node("b", "window", ["plates"], ["meals"], seconds=10),),
    places={"B": "w1", "the log of meals": "w2"},
    shows={"plates": "inject promise watermark", "B": "hook watermark", "meals": "out"},
    script=_idle,
)

TIMES: Final = (_AUTHORITY, _POLICIES, _IDLE)
