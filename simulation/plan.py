"""The plan of a run: all that a seed decides before the run begins.

A plan holds the topology, its input, the cluster's settings and the faults' numbers. The expected results follow from
it.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import msgspec

from millwheel.model.stream_names import full_name
from millwheel.sdk.package import CodePackage
from simulation.blocks import LIBRARY, OPERATORS, PIPELINE, Feed
from simulation.clocks import BEGINNING
from simulation.forms import SINK, Form, form_nodes

__all__ = ["FIRST", "LETTERS", "Plan", "PlannedRecord", "SourceReader", "neighbour_package", "package_of", "packed"]

FIRST: Final = int(BEGINNING) * 1_000_000
"""The first event time, in microseconds since the epoch."""

LETTERS: Final = "simulated/dead-letters"
"""The stream of dead letters, which receives the records that computations give up on."""


_TUNED: Final = ("core", "log", "ids", "authority", "bounds", "pages")


@dataclass(frozen=True, slots=True)
class PlannedRecord:
    """One record to inject. ``late``: its timestamp is behind the watermark that its injector process has promised."""

    number: int
    timestamp: int
    a: str
    b: str
    late: bool


@dataclass(slots=True)
class SourceReader:
    """One injector process: its source's records in order, and the watermark that it may promise after each record."""

    stream: str
    process: str
    inputs: list[PlannedRecord]
    promises: list[int]
    by_position: bool
    begins: float = 0.0
    """The virtual time in seconds at which it begins."""
    burst: int = 1
    """How many records it sends without a pause. It advances its watermark after them. Not for batches and files."""
    batched: bool = False
    """Whether it sends batches of a query under the records' numbers. Such a process does not send by position."""
    spark: bool = False
    """Whether it is a Spark query: :mod:`simulation.spark`."""
    files: int = 0
    """The number of files that it injects; 0: it is not a file injector."""
    runs: int = 0
    """How often the files are read before the run that finishes the process."""
    grows: bool = False
    """Whether the files grow between runs. In that case the earlier runs follow the files' tails."""
    checkpoint: bool = False
    """Whether it stores a checkpoint: the position up to which all records are ACKed."""
    kills: int = 0
    """How often it is killed at one of its own steps."""
    idle_at: int = -1
    """The index of the record before which the process declares itself idle; -1: never.

    Records from this one on may be late.
    """


@dataclass(slots=True)
class Plan:
    """Everything that is fixed before a run begins."""

    seed: int
    nodes: list[dict[str, Any]] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)
    readers: list[SourceReader] = field(default_factory=list)
    intervals: int = 1
    tuning: dict[str, dict[str, int]] = field(default_factory=lambda: {name: {} for name in _TUNED})
    """Overridden bounds: of interval cores, stream logs, id sets and the authority, and bounds that have no setting.

    A bound that is missing here has its usual value.
    """
    span: float = 10.0
    """Seconds during which input arrives and faults happen."""
    added: dict[str, Any] | None = None
    """A computation that one new version adds. A later version may remove it."""
    neighbour: dict[str, Any] | None = None
    """The computation of a second topology. It reads a stream of the first topology."""
    neighbour_lives: int = 0
    """How often the second topology is submitted. It is cancelled between two submissions."""
    ending: str = ""
    """How an operator ends the topology before its input has ended: "drain", "cancel", or empty for neither."""
    ends_at: float = 0.0
    """Seconds from the topology's submission to the operator's request to end it."""
    clocks: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Wall clock errors by process: the offset in seconds at the start, and the drift in seconds per second."""
    versions: int = 0
    """The number of new versions, in addition to those that come by chance."""
    merges: int = 0
    """The number of merges of neighbouring intervals."""
    splits: int = 0
    """The number of splits."""
    zombies: int = 0
    """How many workers sleep past their leases while their requests to the store are in flight."""
    one_way: int = 0
    """How often one host cannot reach another host while the reverse direction works."""
    islands: int = 0
    """How many workers are cut off from all other processes for longer than their leases."""
    balanced: float = 0.0
    """Seconds of work that each event costs an interval, if masters balance by themselves; 0: they do not."""
    retired: bool = False
    """Whether a client retires finished processes and finished queries."""
    tended: bool = False
    """Whether a client resumes what a failure policy has stopped."""
    guests: bool = False
    """Whether a second subscriber also reads the sinks, and its cursors are removed."""
    probed: bool = False
    """Whether a client requests latency percentiles."""
    replays: int = 0
    """How often a person replays or discards dead letters while records flow."""
    looked_up: bool = False
    """Whether a client looks up the states of a computation."""
    readers_late: float = 0.0
    """Seconds after which subscribers start to read the sinks."""
    readers_rest: float = 0.0
    """Seconds for which a subscriber stops reading after its first records.

    Meanwhile logs fill up. A full log accepts only records that hold the watermark.
    """
    renewed: str = ""
    """The computation whose state has another format from the first new version on."""
    returns_at: float = 0.0
    """Seconds after its submission at which the topology is cancelled and submitted again; 0: it is not."""
    stays: bool = False
    """Whether the second topology reads an injected stream, and stays while the first one goes away and comes back."""
    surely: frozenset[int] | None = None
    """For a topology that was submitted again: the records that were sent since. None: all records must arrive."""
    form: Form | None = None
    """The first form of the part of the topology that updates change; None: there is no such part.

    See :mod:`simulation.forms`.
    """
    forms: int = 0
    """The number of updates that change the form."""
    form_streams: tuple[str, ...] = ()
    """The streams that the forms may read."""
    lease_clock: str = ""
    """The clock by which processes measure their leases; see :class:`simulation.coordinator.SimulatedCoordinator`."""
    suspensions: int = 0
    """How many machines are suspended for longer than a lease."""
    etcd_suspended: str = ""
    """Whether the coordinator's machines are suspended, and what its clock does then: "counts" that time or "stands".

    Empty: no suspension.
    """
    power_cuts: int = 0
    """How often the machine of an embedded store loses power. All processes of the cluster lose power with it."""
    store: str = ""
    """The kind of store: "cassandra", "embedded", or empty for a store that performs each call in one step."""
    store_ways: dict[str, Any] = field(default_factory=dict)
    """How often the store chooses each of its behaviours, and bounds of its code."""
    columns_mixed: bool = False
    """Whether one of the workers keeps no windows by columns."""
    settled: float = 0.0
    """After how many seconds an owner looks for senders that have ended, to drop what it has of them; 0: as usual."""
    revisions_kept: int = 5_000
    """How many revisions the coordinator keeps. A watcher that is further behind must read all values again."""

    feed: Feed | None = None
    """What a source of the topology reads, for a sink; None: the topology has no connectors."""

    @property
    def counter(self) -> str:
        """The computation whose states may be looked up: one that counts and forgets nothing. Empty: there is none."""
        nodes = [node for node in self.nodes if node["kind"] == "count" and node["exactly_once"]]
        return nodes[0]["name"] if nodes and not self.ending and not self.returns_at else ""

    @property
    def sinks(self) -> list[str]:
        """The streams without a consumer."""
        consumed = {stream for node in self.nodes for stream in node["inputs"]}
        produced = {stream for node in self.nodes for stream in node["outputs"]}
        diverted = {self.diverted(node) for node in self.nodes if node["late"] == "divert"}
        letters = {LETTERS} if any("letters" in node for node in self.nodes) else set()
        changing = {SINK} if self.form is not None else set()
        return sorted(((produced | diverted | letters) - consumed) | changing)

    @property
    def judged_apart(self) -> set[str]:
        """The output streams of library windows and of pipelines.

        :mod:`simulation.windowed` and :mod:`simulation.pipelines` compute what they carry.
        """
        return {stream for node in self.nodes if node["kind"] in (LIBRARY, PIPELINE) for stream in node["outputs"]}

    @property
    def clocked(self) -> bool:
        """Whether results of its own computations wait for a time of the wall clock."""
        steps = [step for node in self.nodes if node["kind"] == PIPELINE for step in node["arguments"]]
        return any(node["kind"] == "delay" for node in self.nodes) or any(OPERATORS[step[0]].by_clock for step in steps)

    @staticmethod
    def diverted(node: dict[str, Any]) -> str:
        """The stream of a node's late records, if the node diverts them."""
        return f"{node['name']}-late"

    @property
    def wide(self) -> bool:
        """Whether a cycle leads over several computations, or may lead over several intervals.

        In that case no watermark waits for records on the cycle. Their results may be behind the end of a stream.
        """
        cycles = [(node, stream) for node in self.nodes for stream in node["feedback"]]
        divided = self.intervals > 1 or self.balanced > 0 or self.reshaping()[0] > 0
        return any(divided or stream not in node["back"] for node, stream in cycles)

    @property
    def straggling(self) -> float:
        """The largest straggler delay in seconds; 0 if all nodes are strong.

        After this delay, weak productions without an ACK are stored.
        """
        return max((node["straggler"] / 1e6 for node in self.nodes if not node["strong"]), default=0.0)

    def reshaping(self) -> tuple[int, Random]:
        """The number of changes that an operator tries to make, and the random generator that chooses them."""
        chance = Random(f"reshaping {self.seed}")
        return chance.choice((0, 2, 5, 10)), chance

    @property
    def circling(self) -> set[str]:
        """The streams on which a record travels round a cycle over several computations."""
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
        """The topology as text for :func:`simulation.blocks.assemble`.

        Args:
            whole: include the added computation.
            renewed: replace the code of the computation in ``self.renewed``.
            form: the form of the changing part; None: the first one.
        """
        nodes = [*self.nodes, self.added] if whole and self.added else self.nodes
        form = form or self.form
        nodes = [*nodes, *form_nodes(form)] if form is not None else nodes
        if renewed:
            nodes = [node | {"kind": "recount"} if node["name"] == self.renewed else node for node in nodes]
        feed = {} if self.feed is None else {"feed": msgspec.to_builtins(self.feed)}
        return json.dumps({"name": "simulated", "sources": self.sources, "nodes": nodes, **feed})

    def neighbour_text(self) -> str:
        """The second topology, for :func:`simulation.blocks.assemble`."""
        assert self.neighbour is not None
        inputs = {full_name("simulated", stream): key for stream, key in self.neighbour["inputs"].items()}
        node = self.neighbour | {"inputs": inputs}
        return json.dumps({"name": "neighbour", "sources": [], "externals": list(inputs), "nodes": [node]})


def package_of(
    plan: Plan, whole: bool = False, renewed: bool = False, form: Form | None = None, version: int = 0
) -> CodePackage:
    """The plan's topology as a code package, as users submit it; see :meth:`Plan.text`.

    ``version`` makes the package unique. An update with a package that the topology already has changes nothing.
    """
    text = plan.text(whole, renewed, form)
    source = f"from simulation.blocks import assemble\n\nversion = {version}\ntopology = assemble({text!r})\n"
    return packed(f"simulated_{plan.seed & ((1 << 64) - 1):x}", source)


def neighbour_package(plan: Plan) -> CodePackage:
    """The plan's second topology as a code package."""
    source = f"from simulation.blocks import assemble\n\ntopology = assemble({plan.neighbour_text()!r})\n"
    return packed(f"neighbour_{plan.seed & ((1 << 64) - 1):x}", source)


def packed(name: str, source: str) -> CodePackage:
    """A code package with one module that defines ``topology``."""
    archived = io.BytesIO()
    with zipfile.ZipFile(archived, "w") as archive:
        archive.writestr(zipfile.ZipInfo(f"{name}.py", (1980, 1, 1, 0, 0, 0)), source)
    data = archived.getvalue()
    return CodePackage(data, hashlib.sha256(data).hexdigest(), f"{name}:topology")
