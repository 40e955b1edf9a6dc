"""Validates a topology before it runs, and reports all problems at once (for section 4.1's dynamic topologies)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from millwheel.errors import Problem, did_you_mean
from millwheel.master.cycles import find_cycle
from millwheel.model.catalog import (
    DEAD_LETTER_TYPE,
    Catalog,
    dead_letter_stream,
    outputs_of,
)
from millwheel.rpc.v1 import topology_pb2 as specs

__all__ = ["MAX_NAME_LENGTH", "validate"]

MAX_NAME_LENGTH: Final = 200
_UNTYPED: Final = frozenset({"", "Any"})
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def validate(spec: specs.TopologySpec, known: Catalog) -> list[Problem]:
    """Return the problems of ``spec`` alone and beside the topologies live in ``known``; empty if it may run.

    A live topology of the same name is ignored here. The submission checks it.
    """
    problems = [*_names(spec), *_computations(spec), *_streams(spec, known), *_inputs(spec, known)]
    if not problems:
        problems += _cycles(spec, known)
    return problems


def _names(spec: specs.TopologySpec) -> Iterator[Problem]:
    yield from _name(f"topology {spec.name!r}", spec.name)
    for computation in spec.computations:
        yield from _name(f"computation {computation.name!r}", computation.name)
    for stream in _mentioned(spec):
        yield from _name(f"stream {stream!r}", stream)


def _mentioned(spec: specs.TopologySpec) -> list[str]:
    names = [stream.name for stream in spec.streams]
    for computation in spec.computations:
        names += [edge.stream for edge in computation.inputs]
        names += outputs_of(computation)
    return list(dict.fromkeys(names))


def _name(where: str, name: str) -> Iterator[Problem]:
    if not _NAME.fullmatch(name):
        yield Problem(where, "use letters, digits, '.', '_' and '-', beginning with a letter, a digit or '_'")
    elif len(name) > MAX_NAME_LENGTH:
        yield Problem(where, f"the name has {len(name)} characters; at most {MAX_NAME_LENGTH} are allowed")


def _twice(names: list[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _computations(spec: specs.TopologySpec) -> Iterator[Problem]:
    if not spec.computations and not any(stream.injected for stream in spec.streams):
        yield Problem(f"topology {spec.name!r}", "it has neither computations nor sources: add one")
    for name in _twice([computation.name for computation in spec.computations]):
        yield Problem(f"computation {name!r}", "the name is used twice: give one of them another by name=")
    for computation in spec.computations:
        where = f"computation {computation.name!r}"
        if not computation.inputs:
            yield Problem(where, "it has no inputs, so it would never run: give it inputs=")
        for stream in _twice([edge.stream for edge in computation.inputs]):
            yield Problem(where, f"it reads stream {stream!r} twice: name it once, with one key")
        for edge in computation.inputs:
            if bool(edge.key.fields) == bool(edge.key.function):
                yield Problem(f"{where}, input {edge.stream!r}", "name its key: either fields or a function")
        if computation.late_policy == specs.LATE_POLICY_DIVERT and not computation.late_stream:
            yield Problem(where, "its late records are diverted, but to no stream: name one")


def _streams(spec: specs.TopologySpec, known: Catalog) -> Iterator[Problem]:
    for name in _twice([stream.name for stream in spec.streams]):
        yield Problem(f"stream {name!r}", "it is declared twice: declare it once")
    others = {name: record.spec for name, record in known.live_topologies() if name != spec.name}
    yield from _letters(spec, others)
    for stream in spec.streams:
        if stream.name == dead_letter_stream(spec.name) and stream.record_type not in _UNTYPED | {DEAD_LETTER_TYPE}:
            yield Problem(
                f"stream {stream.name!r}", f"the name is taken by the dead letters of {spec.name!r}: use another"
            )
        for other, theirs in others.items():
            for known_stream in theirs.streams:
                if known_stream.name == stream.name:
                    yield from _conflicts(stream, known_stream, other)


def _letters(spec: specs.TopologySpec, others: Mapping[str, specs.TopologySpec]) -> Iterator[Problem]:
    """A stream of dead letters has no other use."""
    letters, made = dead_letter_stream(spec.name), _made(spec)
    for other, theirs in others.items():
        if dead_letter_stream(other) in made:
            yield Problem(
                f"stream {dead_letter_stream(other)!r}",
                f"the name is taken by the dead letters of topology {other!r}: use another",
            )
        if letters in _made(theirs):
            yield Problem(
                f"topology {spec.name!r}",
                f"its dead letters would go to {letters!r}, a stream that topology {other!r} has: use another name",
            )


def _made(spec: specs.TopologySpec) -> set[str]:
    """Return the streams that a topology declares as its own, or produces."""
    declared = {stream.name for stream in spec.streams if not stream.external}
    return declared.union(*(outputs_of(computation) for computation in spec.computations))


def _conflicts(mine: specs.StreamSpec, theirs: specs.StreamSpec, other: str) -> Iterator[Problem]:
    """Two declarations of one stream name mean one stream. What both declare must be equal."""
    where = f"stream {mine.name!r}"
    advice = "declare it alike, or use another stream name"
    if _UNTYPED.isdisjoint((mine.record_type, theirs.record_type)) and mine.record_type != theirs.record_type:
        yield Problem(
            where, f"its type is {mine.record_type} here and {theirs.record_type} in topology {other!r}: {advice}"
        )
    elif mine.format and theirs.format and mine.format != theirs.format:
        names = [specs.ValueFormat.Name(one.format).removeprefix("VALUE_FORMAT_").lower() for one in (mine, theirs)]
        yield Problem(where, f"its format is {names[0]} here and {names[1]} in topology {other!r}: {advice}")
    if mine.injected and theirs.injected:
        for setting in ("id_slack_us", "allowed_skew_us"):
            here, there = getattr(mine, setting), getattr(theirs, setting)
            if here != there:
                yield Problem(where, f"its {setting} is {here} here and {there} in topology {other!r}: {advice}")
        if set(mine.expected_injectors) != set(theirs.expected_injectors):
            yield Problem(where, f"it expects other injectors here than in topology {other!r}: {advice}")
    if mine.HasField("retention") and theirs.HasField("retention") and mine.retention != theirs.retention:
        yield Problem(where, f"its retention differs from the one in topology {other!r}: {advice}")


def _inputs(spec: specs.TopologySpec, known: Catalog) -> Iterator[Problem]:
    sources = {stream.name for stream in spec.streams if stream.injected}
    sources |= {output for computation in spec.computations for output in outputs_of(computation)}
    sources |= {dead_letter_stream(spec.name)}
    for name, record in known.live_topologies():
        if name != spec.name:
            sources |= {stream.name for stream in record.spec.streams if stream.injected}
            sources |= {output for computation in record.spec.computations for output in outputs_of(computation)}
            sources |= {dead_letter_stream(name)}
    for computation in spec.computations:
        for edge in computation.inputs:
            if edge.stream not in sources:
                yield Problem(
                    f"computation {computation.name!r}, input {edge.stream!r}",
                    f"no computation or injector produces this stream{did_you_mean(edge.stream, sorted(sources))}: "
                    "declare it by source(), or submit the topology that produces it first",
                )


def _cycles(spec: specs.TopologySpec, known: Catalog) -> Iterator[Problem]:
    others = [record.spec for name, record in known.live_topologies() if name != spec.name]
    cycle = find_cycle([spec, *others])
    if cycle:
        yield Problem(
            f"topology {spec.name!r}",
            f"a cycle: {' -> '.join(cycle)}; each of its computations would wait for the others' low watermarks "
            "for ever: declare one of its edges as feedback (feedback=True)",
        )
