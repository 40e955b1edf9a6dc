"""The records, the computations and the topology of a scenario."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

import millwheel as mw
from millwheel.sdk.package import CodePackage
from simulation.plan import FIRST, packed

__all__ = ["FRUIT", "HOOKS", "Fruit", "Node", "assemble", "package", "seconds_text", "stamp"]

HOOKS: Final[list[Callable[[str, str], None]]] = []
"""Listeners for what hooks do. The arguments are the computation and a text."""


class Fruit(msgspec.Struct):
    """A record of a scenario. ``name`` is its key, ``what`` is its text for people."""

    name: str
    what: str = ""

    def __str__(self) -> str:
        return self.what or self.name


FRUIT: Final = msgspec.msgpack.Decoder(Fruit)


@dataclass(frozen=True, slots=True)
class Node:
    """One computation of a scenario. ``kind`` is a key of ``_KINDS``; ``inputs`` and ``outputs`` are streams."""

    name: str
    kind: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of :meth:`millwheel.Topology.add`; times in seconds.

    ``late``: "drop", or the output for late records.
    """
    seconds: float = 0.0
    """The seconds that it works or waits."""


def stamp(seconds: float) -> mw.Timestamp:
    """The event time that scenarios call ``seconds``."""
    return mw.Timestamp(FIRST + round(seconds * 1_000_000))


def seconds_text(timestamp: int) -> str:
    """An event time as scenarios write it."""
    if timestamp == mw.MIN_TIMESTAMP:
        return "-∞"
    return "∞" if timestamp == mw.MAX_TIMESTAMP else f"{(timestamp - FIRST) / 1e6:g}"


class _Player:
    def __init__(self, name: str, outputs: list[str], seconds: float) -> None:
        self.name = name
        self.outputs = outputs
        self.seconds = seconds

    def say(self, text: str) -> None:
        for hear in HOOKS:
            hear(self.name, text)

    def emit(self, ctx: Any, fruit: Fruit, timestamp: Any = None) -> None:
        ctx.produce(self.outputs[0], fruit, timestamp=timestamp)


class Pass(_Player, mw.Computation[Fruit, int]):
    """Forwards each record."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Fruit]) -> None:
        """Forward the record."""
        self.say(f"passes {record.value} on")
        self.emit(ctx, record.value)


class Slow(_Player, mw.Computation[Fruit, int]):
    """Spends some time on each record, as if it called an external service."""

    async def process_record(self, ctx: mw.Context[int], record: mw.Record[Fruit]) -> None:
        """Wait, then forward the record."""
        self.say(f"begins with {record.value}, which will take it {self.seconds:g} s")
        await asyncio.sleep(self.seconds)
        self.say(f"is done with {record.value}")
        self.emit(ctx, record.value)


class Count(_Player, mw.Computation[Fruit, int]):
    """Counts the records of each fruit."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Fruit]) -> None:
        """Count the record, and produce the count."""
        ctx.state += 1
        late = f", late: the low watermark is {seconds_text(ctx.watermark)}" if record.late else ""
        self.say(f"counts {record.value} (t={seconds_text(record.timestamp)}{late}): {ctx.state}")
        self.emit(ctx, Fruit(record.value.name, f"{record.value.name} #{ctx.state}{' (late)' if record.late else ''}"))


class Window(_Player, mw.Computation[Fruit, int]):
    """Counts the records of each fruit in a tumbling window, and produces the count at the window's end."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Fruit]) -> None:
        """Count the record, and set a timer for the window's end."""
        ctx.state += 1
        width = round(self.seconds * 1_000_000)
        end = mw.Timestamp(record.timestamp - record.timestamp % width + width)
        self.say(f"counts {record.value}, and sets a timer for t={seconds_text(end)}")
        ctx.set_timer(end)

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        """The window is complete."""
        self.say(f"timer of {ctx.key} fires, set for t={seconds_text(timer.timestamp)}: there were {ctx.state}")
        self.emit(ctx, Fruit(ctx.key, f"{ctx.state} x {ctx.key}"), timer.timestamp)
        del ctx.state


_KINDS: Final[dict[str, Any]] = {"pass": Pass, "slow": Slow, "count": Count, "window": Window}


def assemble(text: str) -> mw.Topology:
    """The topology of the nodes in ``text``, a JSON list. Streams that no node produces are sources."""
    nodes = [msgspec.convert(node, Node) for node in json.loads(text)]
    topology = mw.Topology("scenario")
    made = {stream for node in nodes for stream in node.outputs}
    for stream in dict.fromkeys(stream for node in nodes for stream in node.inputs if stream not in made):
        topology.source(stream, Fruit)
    for node in nodes:
        options = dict(node.options)
        if "straggler_delay" in options:
            options["straggler_delay"] = mw.seconds(options["straggler_delay"])
        if "late" in options:
            options["late"] = mw.Late.DROP if options["late"] == "drop" else mw.divert(options["late"])
        topology.add(
            _KINDS[node.kind](node.name, list(node.outputs), node.seconds),
            name=node.name,
            inputs={stream: mw.key("name") for stream in node.inputs},
            outputs=dict.fromkeys(node.outputs, Fruit),
            **options,
        )
    return topology


def package(text: str) -> CodePackage:
    """The topology as a code package, as users submit it."""
    source = f"from simulation.scenarios.players import assemble\n\ntopology = assemble({text!r})\n"
    return packed("simulated_scenario", source)
