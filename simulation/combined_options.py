"""Plan options that stress several mechanisms at once.

They cover weak timers, the library's windows, tight bounds, and state that is only in the store while
intervals split and merge. :mod:`simulation.plan_options` gives each option its probability. These options run after all
others, and look at the plan as it is at that point.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Final

from millwheel.model.time import seconds
from simulation.blocks import LIBRARY, plain_node
from simulation.forms import Form
from simulation.plan import Plan

__all__ = [
    "changing_forms",
    "growing_states",
    "known_streams",
    "library_windows",
    "small_pages",
    "spilled_and_divided",
    "spilled_timers",
    "tight_bounds",
    "weak_timers",
    "windows_by_columns",
]

_AN_HOUR: Final = 3_600_000_000

_FAITHFUL: Final = frozenset({"pass", "count", "keep", "slow", "flaky", "poison"})
"""Blocks that forward each record unchanged, with its timestamp and its keys."""


def _plain(plan: Plan) -> list[dict[str, Any]]:
    """The nodes that no other option has changed."""
    nodes = [node for node in plan.nodes if node["exactly_once"] and not node["late"] and node["name"] != plan.renewed]
    nodes = [node for node in nodes if not (node["feedback"] or node["back"])]
    return [node for node in nodes if "letters" not in node and "stops" not in node]


def _joining(plan: Plan, node: dict[str, Any]) -> bool:
    """Whether one record may reach the node by two paths."""
    sources = {source["name"] for source in plan.sources}
    return len(node["inputs"]) > 1 and not set(node["inputs"]) <= sources


def replays(plan: Plan, chance: Random) -> None:
    """A person replays dead letters. They come late for the watermark, and their keys go on without them.

    All injectors wait with their end until the last replay is over. A log with a small cap drops letters in replay.
    """
    nodes = [node for node in plan.nodes if "letters" in node]
    waits = not any(reader.files or reader.spark for reader in plan.readers)
    if nodes and waits and not plan.returns_at and "cap_bytes" not in plan.tuning["log"]:
        plan.replays = chance.randint(1, 5)
        for node in nodes:
            node.update(letters=1, joins=[*node["inputs"]])


def weak_timers(plan: Plan, chance: Random) -> None:
    """A computation has several weak productions per call: from timers, or from records together with chaff."""
    nodes = [node for node in _plain(plan) if not _joining(plan, node)]
    if plan.wide:  # records that return on a cycle may arrive at any time
        nodes = [node for node in nodes if not set(node["outputs"]) & plan.circling]
    if not nodes:
        return
    node = chance.choice(nodes)
    kind = chance.choice(("window", "window", "delay", "scatter", "scatter"))
    widths = {"window": (seconds(1), seconds(3)), "delay": (200_000, 1_500_000)}
    arguments = [chance.choice(widths[kind])] if kind in widths else []
    straggler = chance.choice((10_000, 200_000, 1_000_000))
    strong = kind == "scatter" and chance.random() < 0.25
    node.update(kind=kind, arguments=arguments, strong=strong, straggler=straggler)


def tight_bounds(plan: Plan, chance: Random) -> None:
    """Several bounds are reached at once: a poisoned and a slow key with queues of four records, perhaps on a cycle."""
    core, log = plan.tuning["core"], plan.tuning["log"]
    core.update(batch_records=chance.choice((1, 2)), queue_records=4, outbox_records=chance.choice((2, 4)))
    core.update(checkpoint_entries=chance.choice((2, 5)))
    plan.readers_rest = chance.choice((0.0, 0.5, 1.0)) * plan.span
    log.update(
        batch_bytes=400, queue_bytes=chance.choice((400, 2_000)), publish_records=1, window=chance.choice((1, 3))
    )
    # A log may be full before its subscriber comes. What it keeps until then must not go.
    log.update(segment_bytes=300, cap_bytes=chance.choice((1_200, 6_000)), retained_bytes=1 << 40)
    log.update(checkpoint_entries=2)
    plan.tuning["bounds"] = {
        "old": chance.choice((2, 8)),
        "stuck": chance.choice((1, 3, 64)),
        "sifted": chance.choice((3, 20)),
        "flows": 1,
        "acks": chance.choice((1, 3)),
        "batch": chance.choice((1, 3)),
        "early": chance.choice((1, 5)),
        "outbox_rows": chance.choice((1, 5)),
        "arrivals": chance.choice((1, 3)),
    }
    nodes = _plain(plan)
    chance.shuffle(nodes)
    if nodes:
        numbers = [one.number for reader in plan.readers for one in reader.inputs]
        poisoned = sorted(chance.sample(numbers, chance.randint(1, 2)))
        nodes.pop().update(kind="poison", strong=True, arguments=[poisoned, chance.choice((5, 6))])
        simple = all(node["exactly_once"] and not ({"letters", "stops"} & set(node)) for node in plan.nodes)
        if nodes and simple and chance.random() < 0.5:
            node = nodes.pop()
            back = f"{node['name']}-again"
            node.update(kind="loop", strong=True, arguments=[], back=[back], feedback={back: chance.choice("ab")})
    if nodes:
        nodes.pop().update(kind="slow", strong=True, arguments=[chance.choice((100, 300))])


def spilled_timers(plan: Plan, chance: Random) -> None:
    """All timers except a few are only in the store."""
    few = {"timers_kept": 1, "timer_part": chance.choice((1, 2)), "checkpoint_entries": chance.choice((2, 4))}
    plan.tuning["core"].update(few, timer_lead=chance.choice((0, 1_000_000)), flush_interval=10_000)


def spilled_and_divided(plan: Plan, chance: Random) -> None:
    """Timers and ids are only in the store, while the intervals that have them split and merge often."""
    plan.tuning["ids"] = {"segment": chance.choice((1, 3)), "run": chance.choice((1, 4)), "cached": 1}
    spilled_timers(plan, chance)
    plan.intervals = max(plan.intervals, 2)
    plan.splits = chance.randint(2, 4)
    plan.merges = max(plan.merges, chance.randint(2, 4))
    nodes = _plain(plan)
    if nodes and not any(node["feedback"] for node in plan.nodes):
        chance.choice(nodes).update(kind="window", strong=True, arguments=[chance.choice((seconds(1), seconds(3)))])


def growing_states(plan: Plan, chance: Random) -> None:
    """States are in tiny pages, which leave memory soon."""
    nodes = [node for node in _plain(plan) if node["kind"] == "count"]
    if nodes:
        chance.choice(nodes)["kind"] = "keep"
        small_pages(plan, chance)


def small_pages(plan: Plan, chance: Random) -> None:
    """Growing states have several pages, most of which are only in the store."""
    _tiny_pages(plan, chance.choice((60, 120)), chance.choice((1, 3_000)))
    plan.tuning["core"].update(checkpoint_entries=chance.choice((2, 5)))


def _tiny_pages(plan: Plan, size: int, cache: int) -> None:
    plan.tuning["pages"] = {"PAGE_BYTES": size, "ROOT_BYTES": 40, "BLOB_BYTES": 50, "SMALL_BYTES": size // 4}
    plan.tuning["core"].update(cache_bytes=cache)


def known_streams(plan: Plan) -> dict[str, set[str]]:
    """The streams with a consumer that carry injected records unchanged, and the sources of these records."""
    known = {source["name"]: {source["name"]} for source in plan.sources}
    plain = [node["name"] for node in _plain(plan) if not _joining(plan, node)]
    consumed = set(known)
    for node in plan.nodes:
        consumed.update(node["inputs"])
        faithful = node["name"] in plain or (node["name"] == plan.renewed and node["exactly_once"] and not node["late"])
        if node["kind"] in _FAITHFUL and faithful and not plan.wide and set(node["inputs"]) <= set(known):
            sources = set[str]().union(*(known[stream] for stream in node["inputs"]))
            known.update(dict.fromkeys(node["outputs"], sources))
    return {stream: known[stream] for stream in consumed & set(known)}


def library_windows(plan: Plan, chance: Random) -> None:
    """One or two of the library's windows, each over a stream that carries injected records unchanged."""
    shapes = chance.sample(("tumbling", "sliding", "session", "two_phase"), chance.choice((1, 2)))
    _add_windows(plan, chance, shapes, 0)


def windows_by_columns(plan: Plan, chance: Random) -> None:
    """Windows of sums, which workers keep by columns, all or the panes that larger deliveries begin.

    One of the workers may keep none by columns. Some panes move to states, and some results fail. Results are runs, and
    they go to a log or to a computation with keys of its own.
    """
    if plan.returns_at:
        return  # some records of the former incarnation are in no window, and a sum does not show which
    _add_windows(plan, chance, ["columns"], 2)
    plan.tuning["core"].update(columns_from=chance.choice((1, 1, 2)), columns_bytes=chance.choice((2_000, 64 << 20)))
    if chance.random() < 0.5:
        plan.tuning["core"].pop("cache_bytes", None)
    plan.columns_mixed = chance.random() < 0.4
    numbers = [one.number for reader in plan.readers for one in reader.inputs]
    for what, most in (("large", 3), ("failing", 2)):
        plan.nodes[-1][what] = sorted(chance.sample(numbers, chance.choice((0, min(most, len(numbers))))))
    plan.nodes[-1]["keyed"] = chance.random() < 0.6
    plan.tuning["bounds"]["run"] = chance.choice((1, 2, 8))


def _add_windows(plan: Plan, chance: Random, shapes: Sequence[str], first: int) -> None:
    known = known_streams(plan)
    for number, shape in enumerate(shapes, first):
        stream = chance.choice(sorted(known))
        size = chance.choice((1_000_000, 2_500_000, 7_000_000))
        output = f"lw{number}"
        plan.nodes.append(
            plain_node()
            | {
                "name": f"aggregate{number}",
                "kind": LIBRARY,
                "inputs": {stream: chance.choice("ab")},
                "sources": sorted(known[stream]),
                "outputs": [output, f"{output}-late"],
                "arguments": [
                    shape,
                    size,
                    chance.choice((size // 3, size * 2 // 5, min(size // 2, 900_000))),
                    chance.choice((0, 123_456)),
                    chance.choice((0, 1_000_000, _AN_HOUR)) if shape != "columns" else 0,
                ],
            }
        )


def changing_forms(plan: Plan, chance: Random) -> None:
    """Updates change a part of the topology while records flow.

    They change its keys, inputs, consumers and code. One of its computations is removed and comes back. This option
    replaces the added computation and the second topology.
    """
    if plan.wide or plan.ending or plan.returns_at:
        return
    # A stream without a consumer has a log from the beginning. Each stream that these computations read needs another
    # consumer from the beginning, too.
    consumed = {stream for node in plan.nodes for stream in node["inputs"]}
    streams = [stream for node in plan.nodes for stream in node["outputs"] if stream in consumed]
    # A batch holds the watermark for longer than an injector may be ahead of it. A consumer of both would stop the
    # injector for good.
    held = any(node["kind"] == "batch" for node in plan.nodes)
    streams += [source["name"] for source in plan.sources if not (held and "skew" in source)]
    if not streams:
        return
    # An injector's record or a weak production that is resent gets its key computed again; a journaled one does not.
    # See docs/topologies.md.
    strong = {stream for node in plan.nodes if node["strong"] for stream in node["outputs"]}
    streams = [one for one in streams if one in strong] if strong & set(streams) and chance.random() < 0.5 else streams
    chosen = tuple(chance.sample(streams, min(len(streams), 2)))
    kind = chance.random()
    growing = 0.3 <= kind < 0.55
    plan.form = Form(
        chosen[0],
        chosen[: chance.choice((1, 2))],
        windows=kind < 0.3,
        growing=growing,
        present=chance.random() < 0.8,
        rekeyed=strong >= set(chosen),
    )
    if growing:
        _tiny_pages(plan, 120, 3_000)
    plan.form_streams = chosen
    plan.forms = chance.randint(2, 6)
    plan.added = plan.neighbour = None
    plan.stays = False
    plan.versions = 0
