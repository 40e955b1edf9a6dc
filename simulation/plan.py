"""What a seed decides beforehand: the topology, its input, the cluster's settings, and what is to come of it all."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from millwheel.core.time import seconds
from millwheel.sdk.package import CodePackage
from simulation.blocks import LIBRARY, plain_node
from simulation.clocks import BEGINNING
from simulation.forms import SINK, Form, form_nodes
from simulation.variety import vary

__all__ = ["FIRST", "LETTERS", "Input", "Plan", "Reader", "neighbour_package", "package_of", "packed", "plan_for"]

FIRST: Final = int(BEGINNING) * 1_000_000
"""The first event time, in microseconds."""

LETTERS: Final = "simulated.dead-letters"
"""The stream of what computations give up on."""


_TUNED: Final = ("core", "log", "ids", "authority", "bounds")


@dataclass(frozen=True, slots=True)
class Input:
    """One record to be injected. ``late``: it is behind what its process has promised."""

    number: int
    timestamp: int
    a: str
    b: str
    late: bool


@dataclass(slots=True)
class Reader:
    """One injector process: its source's records in order, and what may be promised after each."""

    stream: str
    process: str
    inputs: list[Input]
    promises: list[int]
    by_position: bool
    batched: bool = False
    """Whether it sends batches of a query, under the records' numbers (and not by position)."""
    spark: bool = False
    """Whether it is a query of Spark's: :mod:`simulation.spark`."""
    files: int = 0
    """Of how many files it is the injector; 0: of none."""
    runs: int = 0
    """How often they are read before the run that finishes the process."""
    grows: bool = False
    """Whether they grow meanwhile; earlier runs are tails then."""
    checkpoint: bool = False
    """Whether it remembers how far all is ACKed."""
    kills: int = 0
    """How often it is killed at a step of its own."""
    idle_at: int = -1
    """Before which record it says that it has nothing to send, if it does: from there on they may be late."""


@dataclass(slots=True)
class Plan:
    """Everything that is fixed before a run begins."""

    seed: int
    nodes: list[dict[str, Any]] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)
    readers: list[Reader] = field(default_factory=list)
    intervals: int = 1
    tuning: dict[str, dict[str, int]] = field(default_factory=lambda: {name: {} for name in _TUNED})
    """Bounds of intervals, of stream logs, of what they know of ids, of the authority, and those that no setting has;
    the others are as usual."""
    span: float = 10.0
    """Seconds over which the input comes, and faults happen."""
    added: dict[str, Any] | None = None
    """A computation that comes with a new version, and may go with another."""
    neighbour: dict[str, Any] | None = None
    """The computation of a second topology, which reads a stream of the first one."""
    neighbour_lives: int = 0
    """How often the second topology is submitted; it is cancelled in between."""
    ending: str = ""
    """How an operator ends the topology before its input has ended: "drain", "cancel", or not at all."""
    ends_at: float = 0.0
    """Seconds after it was submitted."""
    clocks: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By process: by how many seconds its wall clock is wrong at first, and goes wrong each second."""
    versions: int = 0
    """How many new versions come beside those that come by chance."""
    merges: int = 0
    """And how many merges of neighbours."""
    splits: int = 0
    """And how many splits."""
    zombies: int = 0
    """How many workers sleep past their leases with what they had asked of the store on its way."""
    one_way: int = 0
    """How often one host does not reach another, which reaches it."""
    islands: int = 0
    """How many workers are cut off from everybody for longer than their leases."""
    balanced: float = 0.0
    """Seconds of work that each event costs an interval, where masters balance by themselves; 0: they do not."""
    retired: bool = False
    """Whether somebody has processes that have finished, and their queries, forgotten."""
    tended: bool = False
    """Whether somebody has what its failure policy has stopped go on."""
    guests: bool = False
    """Whether somebody else reads the sinks, too, and has cursors forgotten."""
    probed: bool = False
    """Whether somebody asks for percentiles."""
    readers_late: float = 0.0
    """Seconds after which the sinks are read."""
    readers_rest: float = 0.0
    """Seconds for which a subscriber stands still when it has its first records. Full logs take holders alone then."""
    renewed: str = ""
    """The computation whose states are others from the first new version on."""
    returns_at: float = 0.0
    """Seconds after it was submitted, the topology is cancelled, and submitted again; 0: it is not."""
    surely: frozenset[int] | None = None
    """Of a topology that came back: the records that were sent since. None: all are to arrive."""
    form: Form | None = None
    """The first form of what updates change, if the plan has such a part: :mod:`simulation.forms`."""
    forms: int = 0
    """How many updates change it."""
    form_streams: tuple[str, ...] = ()
    """The streams that its forms may read."""
    lease_clock: str = ""
    """What processes judge their leases by; see :class:`simulation.coordinator.SimulatedCoordinator`."""
    suspensions: int = 0
    """How many machines are suspended, and for longer than a lease."""
    etcd_suspended: str = ""
    """Whether the coordinator's machines are suspended, and its clock "counts" that or "stands"."""
    power_cuts: int = 0
    """How often the machine of an embedded store loses its power, and all processes of the cluster with it."""
    store: str = ""
    """Whose ways the store has: "cassandra", "embedded", or those of one step a call."""
    store_ways: dict[str, Any] = field(default_factory=dict)
    """How often it takes which, and bounds of its code."""
    revisions_kept: int = 5_000
    """Of the coordinator's: who is further behind must read everything anew."""

    @property
    def sinks(self) -> list[str]:
        """The streams that nobody consumes."""
        consumed = {stream for node in self.nodes for stream in node["inputs"]}
        produced = {stream for node in self.nodes for stream in node["outputs"]}
        diverted = {self.diverted(node) for node in self.nodes if node["late"] == "divert"}
        letters = {LETTERS} if any("letters" in node for node in self.nodes) else set()
        changing = {SINK} if self.form is not None else set()
        return sorted(((produced | diverted | letters) - consumed) | changing)

    @property
    def windowed(self) -> set[str]:
        """The streams of library windows; :mod:`simulation.windowed` knows what they carry."""
        return {stream for node in self.nodes if node["kind"] == LIBRARY for stream in node["outputs"]}

    @staticmethod
    def diverted(node: dict[str, Any]) -> str:
        """The stream of a node's late records, if it diverts them."""
        return f"{node['name']}-late"

    @property
    def wide(self) -> bool:
        """Whether a cycle leads over several computations, or may lead over several intervals: then no watermark waits
        for what is on its way round, and what comes of it may be behind the end of a stream."""
        cycles = [(node, stream) for node in self.nodes for stream in node["feedback"]]
        divided = self.intervals > 1 or self.balanced > 0 or self.reshaping()[0] > 0
        return any(divided or stream not in node["back"] for node, stream in cycles)

    @property
    def straggling(self) -> float:
        """Seconds after which weak productions that are not ACKed are stored, at the latest; 0 where there are none."""
        return max((node["straggler"] / 1e6 for node in self.nodes if not node["strong"]), default=0.0)

    def reshaping(self) -> tuple[int, Random]:
        """How many changes an operator tries to make, and the chance that decides on them."""
        chance = Random(f"reshaping {self.seed}")
        return chance.choice((0, 2, 5, 10)), chance

    @property
    def circling(self) -> set[str]:
        """The streams that a cycle over several computations leads through, each time round."""
        found: set[str] = set()
        for first, node in enumerate(self.nodes):
            for back in node["feedback"]:
                last = next(index for index, one in enumerate(self.nodes) if back in one["back"])
                found.update(stream for one in self.nodes[first:last] for stream in one["outputs"])
        return found

    @property
    def added_sinks(self) -> list[str]:
        """The streams of the computation that is added."""
        return list(self.added["outputs"]) if self.added else []

    def text(self, whole: bool = False, renewed: bool = False, form: Form | None = None) -> str:
        """The topology, for :func:`simulation.blocks.assemble`; with what is added, if it is to be the ``whole``; with
        other code for what is to be ``renewed``; in a ``form`` (None: the first one)."""
        nodes = [*self.nodes, self.added] if whole and self.added else self.nodes
        form = form or self.form
        nodes = [*nodes, *form_nodes(form)] if form is not None else nodes
        if renewed:
            nodes = [node | {"kind": "recount"} if node["name"] == self.renewed else node for node in nodes]
        return json.dumps({"name": "simulated", "sources": self.sources, "nodes": nodes})

    def neighbour_text(self) -> str:
        """The second topology, for :func:`simulation.blocks.assemble`."""
        assert self.neighbour is not None
        streams = list(self.neighbour["inputs"])
        return json.dumps({"name": "neighbour", "sources": [], "externals": streams, "nodes": [self.neighbour]})


def plan_for(seed: int) -> Plan:
    """The plan of a seed."""
    chance = Random(f"plan {seed}")
    plan = Plan(seed, intervals=chance.choice((1, 1, 2, 3)), span=chance.uniform(4.0, 12.0))
    _choose_tuning(plan, chance)
    _choose_topology(plan, chance)
    _choose_inputs(plan, chance)
    vary(plan)
    return plan


_TUNING: Final[dict[str, dict[str, tuple[int, ...]]]] = {
    "core": {
        "batch_records": (1, 2, 8),
        "queue_records": (4, 20),
        "outbox_records": (2, 10),
        "cache_bytes": (1, 2_000),
        "flush_interval": (10_000, 60_000_000),
        "checkpoint_entries": (2, 5, 20),
        "timer_part": (1, 3),
        "timers_kept": (1, 4),
        "timer_lead": (0, 1_000_000),
    },
    "log": {
        "batch_bytes": (400,),
        "segment_bytes": (300, 2_000),
        "memory_bytes": (2_000,),
        "checkpoint_entries": (2, 5),
        "publish_records": (1, 3),
    },
}
"""What a bound may be, if it is not the usual one."""


def _choose_tuning(plan: Plan, chance: Random) -> None:
    share = chance.choice((0.0, 0.2, 0.6))
    for where, bounds in _TUNING.items():
        for name, values in bounds.items():
            if chance.random() < share:
                plan.tuning[where][name] = chance.choice(values)


def _node(name: str, inputs: dict[str, str], outputs: list[str], chance: Random, last: bool) -> dict[str, Any]:
    kinds = ("count", "count", "window", "window", "batch", "slow", "flaky")
    kind = chance.choice(kinds if last else (*kinds, "pass", "pass", "delay", "delay"))
    arguments: list[int] = []
    if kind == "window":
        arguments = [chance.choice((seconds(1), seconds(3), seconds(20)))]
    elif kind == "batch":
        arguments = [chance.choice((seconds(1), seconds(30)))]
    elif kind == "delay":
        arguments = [chance.choice((200_000, 1_500_000))]
    strong = not (kind == "pass" and chance.random() < 0.6)
    return {
        "name": name,
        "kind": kind,
        "inputs": inputs,
        "outputs": outputs,
        **plain_node(),
        "arguments": arguments,
        "strong": strong,
    }


def _choose_topology(plan: Plan, chance: Random) -> None:
    shape = chance.choice(("chain", "chain", "fan", "join", "diamond"))
    plan.sources = [{"name": "s0", "injectors": []}]
    if shape == "join":
        plan.sources.append({"name": "s1", "injectors": []})

    def key() -> str:
        return chance.choice("ab")

    if shape == "chain":
        length = chance.randint(1, 3)
        for number in range(length):
            last = number == length - 1
            before = f"x{number - 1}" if number else "s0"
            plan.nodes.append(_node(f"c{number}", {before: key()}, [f"x{number}"], chance, last))
    elif shape == "fan":
        plan.nodes.append(_node("c0", {"s0": key()}, ["x0", "x1"], chance, False))
        plan.nodes.append(_node("c1", {"x0": key()}, ["x2"], chance, True))
    elif shape == "join":
        plan.nodes.append(_node("c0", {"s0": key(), "s1": key()}, ["x0"], chance, False))
        plan.nodes.append(_node("c1", {"x0": key()}, ["x1"], chance, True))
    else:
        plan.nodes.append(_node("c0", {"s0": key()}, ["x0", "x1"], chance, False))
        plan.nodes.append(_node("c1", {"x0": key()}, ["x2"], chance, False))
        plan.nodes.append(_node("c2", {"x2": key(), "x1": key()}, ["x3"], chance, True))


def _choose_inputs(plan: Plan, chance: Random) -> None:
    numbers = iter(range(1, 1_000_000))
    keys = [f"{chr(chance.randint(33, 125))}{chr(chance.randint(33, 125))}" for _ in range(chance.choice((1, 3, 8)))]
    for source in plan.sources:
        source["id_slack"] = chance.choice((0, seconds(1), seconds(3600)))
        names = ["r0", "r1"][: chance.choice((1, 2))]
        # Of two, the one that comes later begins where the other is by then, if that does not wait for it.
        if len(names) > 1 or chance.random() < 0.5:
            source["injectors"] = names
        for name in names:
            count = chance.choice((5, 15, 30))
            late = chance.choice((0.0, 0.0, 0.1))
            inputs, promises = [], []
            at = FIRST
            for _ in range(count):
                at += chance.choice((0, 10_000, 300_000, 1_000_000))
                behind = chance.random() < late and at > FIRST + 2_000_000
                stamp = at - chance.randint(1_000_000, 2_000_000) if behind else at + chance.randint(0, 500_000)
                inputs.append(Input(next(numbers), stamp, chance.choice(keys), chance.choice(keys), behind))
                promises.append(at)
            plan.readers.append(Reader(source["name"], name, inputs, promises, chance.random() < 0.5))


def package_of(
    plan: Plan, whole: bool = False, renewed: bool = False, form: Form | None = None, version: int = 0
) -> CodePackage:
    """The plan's topology as a code package, as users send it; see :meth:`Plan.text`.

    ``version``: an update with a package that the topology has changes nothing, so each one has a package of its own.
    """
    text = plan.text(whole, renewed, form)
    source = f"from simulation.blocks import assemble\n\nversion = {version}\ntopology = assemble({text!r})\n"
    return packed(f"simulated_{plan.seed & ((1 << 64) - 1):x}", source)


def neighbour_package(plan: Plan) -> CodePackage:
    """The plan's second topology as a code package."""
    source = f"from simulation.blocks import assemble\n\ntopology = assemble({plan.neighbour_text()!r})\n"
    return packed(f"neighbour_{plan.seed & ((1 << 64) - 1):x}", source)


def packed(name: str, source: str) -> CodePackage:
    """A code package of one module with a ``topology``."""
    archived = io.BytesIO()
    with zipfile.ZipFile(archived, "w") as archive:
        archive.writestr(zipfile.ZipInfo(f"{name}.py", (1980, 1, 1, 0, 0, 0)), source)
    data = archived.getvalue()
    return CodePackage(data, hashlib.sha256(data).hexdigest(), f"{name}:topology")
