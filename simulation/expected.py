"""What is to arrive at the sinks of a plan: each record's effect, exactly once, unless the plan says otherwise."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set

from simulation.blocks import turns
from simulation.forms import SINK
from simulation.plan import LETTERS, Plan

__all__ = ["Arrivals", "arrivals_by_stream", "differences", "missed_by_added", "neighbour_differences"]

_ANY = 1_000_000
"""So often that nobody counts: records of computations that take duplicates."""

_WAITING = frozenset({"window", "brief", "batch", "delay"})
"""Blocks that keep records until the watermark has passed them, or a wall time: that may be far ahead, where the clock
of the worker that set the timer was."""

Arrivals = dict[int, tuple[int, int]]
"""By injected record: how often it arrives at least, and at most."""

Found = Mapping[str, Counter[int]]


def differences(plan: Plan, found: Found, late: Mapping[str, int], acked: Set[int]) -> Iterator[str]:
    """What did not arrive as it should.

    ``found``: by sink, how often each injected record has arrived there; ``late``: by computation, how many late
    records it has counted; ``acked``: the records that their injectors know to be in.
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
    """Records that the added computation lacks, though they were sent when every worker knew of it (G1).

    Args:
        plan: The plan of a run in which the computation joined and stayed.
        joined: When the last worker learnt of it, in virtual seconds.
        first_sent: When each injected record was sent for the first time.
        found: How often each injected record has arrived at the computation's sink.
    """
    if plan.ending:
        return
    due = _arrivals(plan, set(), joined=True)[plan.added_sinks[0]]
    yield from _missed("what was added", due, joined, first_sent, found)


def neighbour_differences(
    plan: Plan, joined: float | None, first_sent: Mapping[int, float], found: Counter[int]
) -> Iterator[str]:
    """What the second topology has too often, or lacks though it was sent when every worker knew of it (G1).

    Injectors learn of it by themselves: where it reads from them, nothing is said of what it lacks.
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
    """By stream of the plan's own nodes and sources: what comes by there."""
    return _streams(plan, set())


def _injected_late(plan: Plan) -> set[int]:
    return {one.number for reader in plan.readers for one in reader.inputs if one.late}


def _arrivals(plan: Plan, acked: Set[int], without: str = "", joined: bool = False) -> dict[str, Arrivals]:
    """By sink, see :func:`_streams`; those of library windows are :mod:`simulation.windowed`'s to judge, and
    that of what updates change :mod:`simulation.updates`'."""
    at = _streams(plan, acked, without, joined)
    apart = {SINK, *plan.windowed}
    return {sink: at[sink] for sink in (*plan.sinks, *plan.added_sinks) if sink not in apart}


def _streams(plan: Plan, acked: Set[int], without: str = "", joined: bool = False) -> dict[str, Arrivals]:
    """By stream. Blocks lose nothing and repeat nothing, but for one that gives up, and what is ``without``.

    With ``joined`` the computation that is added gets everything; otherwise it may lack what came before it.

    Of a topology that is drained what was ACKed comes out, but for what waits for a timer; of one that is
    cancelled nothing need come.
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
            # Copies that count, wherever in the cycle they are made, come by here, too.
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
    """What comes over any of the streams."""
    taken: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for stream in streams:
        for number, (least, most) in at[stream].items():
            taken[number] = (taken[number][0] + least, taken[number][1] + most)
    return taken


def _given_up(plan: Plan, acked: Set[int], sinks: Mapping[str, Arrivals], found: Found) -> Iterator[str]:
    """What is a dead letter is nowhere else, and what is none is everywhere: each time that it was taken."""
    for node in plan.nodes:
        if "letters" not in node:
            continue
        others, passes, letters = _arrivals(plan, acked, node["name"]), sinks[LETTERS], found[LETTERS]
        for sink in plan.sinks:
            for number, (_, most) in sinks[sink].items() if sink in sinks and sink != LETTERS else ():
                through = most - others[sink].get(number, (0, 0))[1]
                due = most - through * letters[number] // passes[number][1] if through else most
                if found[sink][number] != due:
                    told = f"stream {sink} has record {number} {found[sink][number]} times, and not {due}"
                    yield f"{told}: {letters[number]} of {passes[number][1]} copies are dead letters (G2)"


def _late(plan: Plan, sinks: Mapping[str, Arrivals], found: Found, counted: Mapping[str, int]) -> Iterator[str]:
    """The computation that takes injected records drops, or diverts, each as a whole, and counts it (G14).

    One with weak productions may have sent some of what a run made that was never committed, before its interval was
    taken over; where the record is run again it may be late and was not before, or was and is not (G10). What is not
    whole then was made by such a run, so that the committed one found the record late.
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
            yield f"late record {number} arrived {arrived} times, and {diverted} times at {aside or 'nobody'} (G14)"
    least = len(gone) + len(torn)
    if not least <= counted[node["name"]] <= least + len(either):
        told = f"{node['name']} counted {counted[node['name']]} late records, and {len(gone)} are gone: {gone}"
        yield f"{told}; in parts came {torn}, and perhaps both ways {either} (G14)"
