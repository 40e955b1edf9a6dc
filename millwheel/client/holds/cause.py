"""The cause at the end of a chain of holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from millwheel.client.control import ControlClient
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import cluster_pb2

__all__ = ["HoldCause", "HoldStep", "and_paused"]


@dataclass(frozen=True, slots=True)
class HoldStep:
    """One step of the chain upstream: ``name`` waits for the next step."""

    name: str
    value: int
    text: str


@dataclass(frozen=True, slots=True)
class HoldCause:
    """The cause at the end of the chain.

    ``kind`` is a constant for programs: input, record, production, timer, state, silent, injector, key, unknown or
    none.
    """

    kind: str
    name: str
    text: str
    remedy: str = ""
    interval: str = ""
    process: str = ""
    subject: str = ""
    awaited: list[str] = field(default_factory=list)
    """The groups whose low watermarks the cause waits for. The cause is one more step of the chain then."""
    chain: list[HoldStep] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Further sentences about the cause: which hook raises which error, and since when."""
    failing: list[cluster_pb2.ComputationFailures] = field(default_factory=list)
    """Computations of the chain whose hooks raise, even if the failures do not hold the watermark now."""


async def and_paused(
    cause: HoldCause, client: ControlClient, waits: Callable[[catalog.TopologyRecord], bool]
) -> HoldCause:
    """Add to the cause the paused topologies for which ``waits`` is true. They do not ACK what is sent to them."""
    paused = [
        record.spec.name
        for record in await client.list_topologies()
        if record.state == catalog.TOPOLOGY_STATE_PAUSED and waits(record)
    ]
    if not paused:
        return cause
    names, verb = ", ".join(map(repr, paused)), "is" if len(paused) == 1 else "are"
    remedy = f"`millwheel topology resume {paused[0]}` lets it go on"
    return replace(cause, text=f"{cause.text}; what is sent to {names} waits, which {verb} paused", remedy=remedy)
