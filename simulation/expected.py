"""The records that must arrive at a plan's sinks: each record's effect exactly once, unless the plan says otherwise."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set

from simulation.blocks import turns
from simulation.forms import SINK
from simulation.plan import LETTERS, Plan

__all__ = ["Arrivals", "arrivals_by_stream", "differences", "missed_by_added", "neighbour_differences"]

_ANY = 1_000_000
"""No upper bound: computations that are not exactly-once may repeat records."""

_WAITING = frozenset({"window", "brief", "batch", "delay"})
"""Blocks that keep records until the watermark passes them, or until a wall time.

That wall time may be far ahead, if the clock of the worker that set the timer was ahead.
"""

Arrivals = dict[int, tuple[int, int]]
"""By injected record: the minimum and the maximum number of its arrivals."""

Found = Mapping[str, Counter[int]]


def differences(plan: Plan, found: Found, late: Mapping[str, int], acked: Set[int]) -> Iterator[str]:
    """The differences between expected and actual arrivals.

    Args:
        plan: The plan of the run.
        found: By sink, how often each injected record has arrived there.
        late: By computation, how many late records it has counted.
        acked: The records that their injectors know to be ACKed.
    """
    sinks = _arrivals(plan, acked)
    for sink, arrivals in sinks.items():
        counted = found[sink]
        lost = {number: least - counted[number] for number, (least, _) in arrivals.items() if counted[number] < least}
        extra = {number: count for number, count in counted.items() if count > arrivals.get(number, (0, 0))[1]}
        if lost:
            yield f"stream {sink} lacks records {lost} (G1)"
        if extra:
            yield f"stream {sink} has records too often, or from nowhere: {extra} (G1)"
    if not plan.ending and all(node["exactly_once"] for node in plan.nodes):
        yield from _late(plan, sinks, found, late)
    yield from _given_up(plan, acked, sinks, found)


def missed_by_added(plan: Plan, joined: float, first_sent: Mapping[int, float], found: Counter[int]) -> Iterator[str]:
    """Records that the added computation lacks, although they were sent after every worker knew of it (G1).

    Args:
        plan: The plan of a run in which the computation was added and stayed.
        joined: When the last worker was notified of it, in virtual seconds.
        first_sent: When each injected record was sent for the first time, in virtual seconds.
        found: How often each injected record has arrived at the computation's sink.
    """
    if plan.ending:
        return
    due = _arrivals(plan, set(), joined=True)[plan.added_sinks[0]]
    yield from _missed("what was added", due, joined, first_sent, found)


def neighbour_differences(
    plan: Plan, joined: float | None, first_sent: Mapping[int, float], found: Counter[int]
) -> Iterator[str]:
    """Records that the second topology has too often, or lacks although every worker knew of it (G1).

    Injectors are notified of the topology at their own times. So this function does not check for missing records where
    the topology reads directly from injectors.
    """
    assert plan.neighbour is not None
    streams = _streams(plan, set())
    due = _taken(streams, plan.neighbour["inputs"])
    if extra := {number: count for number, count in found.items() if count > due.get(number, (0, 0))[1]}:
        yield f"the neighbour has records too often, or from nowhere: {extra} (G1)"
    injected = {source["name"] for source in plan.sources}
    if joined is not None and not injected & set(plan.neighbour["inputs"]):
        yield from _missed("the neighbour", due, joined, first_sent, found)


def _missed(
    who: str, due: Arrivals, joined: float, first_sent: Mapping[int, float], found: Counter[int]
) -> Iterator[str]:
    for number, (least, _) in due.items():
        if first_sent.get(number, joined) > joined and found[number] < least:
            yield f"{who} lacks record {number}: {found[number]} of {least} copies (G1)"


def arrivals_by_stream(plan: Plan) -> dict[str, Arrivals]:
    """By stream of the plan's own nodes and sources: the arrivals there."""
    return _streams(plan, set())


def _injected_late(plan: Plan) -> set[int]:
    return {one.number for reader in plan.readers for one in reader.inputs if one.late}


def _arrivals(plan: Plan, acked: Set[int], without: str = "", joined: bool = False) -> dict[str, Arrivals]:
    """Arrivals by sink, see :func:`_streams`.

    :mod:`simulation.windowed` checks the sinks of library windows, :mod:`simulation.pipelines` those of operators, and
    :mod:`simulation.updates` the sink of the changing part.
    """
    at = _streams(plan, acked, without, joined)
    apart = {SINK, *plan.judged_apart}
    return {sink: at[sink] for sink in (*plan.sinks, *plan.added_sinks) if sink not in apart}


def _streams(plan: Plan, acked: Set[int], without: str = "", joined: bool = False) -> dict[str, Arrivals]:
    """Arrivals by stream.

    Blocks neither lose nor repeat records, except a block that gives up on records. The node ``without`` produces
    nothing. If ``joined`` is set, the added computation gets everything; otherwise it may miss earlier records. From a
    drained topology, all ACKed records arrive, except those that wait for a timer. From a cancelled topology, none
    needs to arrive.
    """
    late = _injected_late(plan)
    at: dict[str, Arrivals] = {source["name"]: {} for source in plan.sources}
    for reader in plan.readers:
        for one in reader.inputs:
            sure = plan.ending == "" or (plan.ending == "drain" and one.number in acked)
            sure &= plan.surely is None or one.number in plan.surely
            at[reader.stream][one.number] = (int(sure), 1)
    for node in (*plan.nodes, *([plan.added] if plan.added else ())):  # in the order of the streams
        taken = _taken(at, node["inputs"])
        if plan.added and node is plan.added and set(node["inputs"]) <= plan.circling:
            # Copies on the cycle count as well, and all of them pass here.
            exact = all(one["exactly_once"] for one in plan.nodes)
            taken.update({number: (0, most * turns(number) if exact else _ANY) for number, (_, most) in taken.items()})
        if (plan.ending and node["kind"] in _WAITING) or (node is plan.added and not joined):
            taken.update({number: (0, most) for number, (_, most) in taken.items()})
        if not node["exactly_once"]:
            taken.update({number: (least, _ANY) for number, (least, _) in taken.items()})
            late = set(taken)  # a copy may come at any time
        if node["late"]:
            taken.update({number: (0, most) for number, (_, most) in taken.items() if number in late})
        if "letters" in node:
            taken.update({number: (0, most) for number, (_, most) in taken.items()})
            at[LETTERS] = dict(taken)
        for stream in node["outputs"]:
            at[stream] = {} if node["name"] == without else dict(taken)
        if node["late"] == "divert":
            at[plan.diverted(node)] = {number: (0, most) for number, (_, most) in taken.items() if number in late}
    return at


def _taken(at: Mapping[str, Arrivals], streams: Iterable[str]) -> Arrivals:
    """The total arrivals over all of the streams."""
    taken: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for stream in streams:
        for number, (least, most) in at[stream].items():
            taken[number] = (taken[number][0] + least, taken[number][1] + most)
    return taken


def _given_up(plan: Plan, acked: Set[int], sinks: Mapping[str, Arrivals], found: Found) -> Iterator[str]:
    """Check dead letters: each copy of a record is either a dead letter, or arrives at every sink that its paths
    lead to."""
    for node in plan.nodes:
        if "letters" not in node:
            continue
        others, passes, letters = _arrivals(plan, acked, node["name"]), sinks[LETTERS], found[LETTERS]
        for sink in plan.sinks:
            for number, (_, most) in sinks[sink].items() if sink in sinks and sink != LETTERS else ():
                through = most - others[sink].get(number, (0, 0))[1]
                due = most - through * letters[number] // passes[number][1] if through else most
                if found[sink][number] != due:
                    text = f"stream {sink} has record {number} {found[sink][number]} times, and not {due}"
                    yield f"{text}: {letters[number]} of {passes[number][1]} copies are dead letters (G2)"


def _late(plan: Plan, sinks: Mapping[str, Arrivals], found: Found, counted: Mapping[str, int]) -> Iterator[str]:
    """The computation that consumes injected records drops or diverts each late record as a whole, and counts it (G14).

    A computation with weak productions may send some of them in a run that is never committed, before a takeover. The
    new owner runs the record again. The record may be late in only one of the two runs (G10). A record that arrived in
    part therefore comes from an uncommitted run, and the committed run found the record late.
    """
    node = plan.nodes[0]
    if not node["late"]:
        return
    aside = plan.diverted(node) if node["late"] == "divert" else ""
    others = {sink: arrivals for sink, arrivals in sinks.items() if sink in plan.sinks and sink != aside}
    gone: set[int] = set()
    torn: set[int] = set()
    either: set[int] = set()
    for number in sorted(_injected_late(plan)):
        diverted = found[aside][number] if aside else 0
        arrived = {sink: found[sink][number] for sink in others}
        whole = all(count == others[sink].get(number, (0, 0))[1] for sink, count in arrived.items())
        if not any(arrived.values()):
            gone.add(number)
            whole = bool(diverted) or not aside
        elif not node["strong"] and (diverted or not aside):
            (either if whole else torn).add(number)
            whole = True
        elif diverted:
            whole = False
        if not whole:
            yield f"late record {number} arrived {arrived} times, and {diverted} times at {aside or 'no stream'} (G14)"
    least = len(gone) + len(torn)
    if not least <= counted[node["name"]] <= least + len(either):
        text = f"{node['name']} counted {counted[node['name']]} late records, and {len(gone)} are gone: {gone}"
        yield f"{text}; in parts came {torn}, and perhaps both ways {either} (G14)"
