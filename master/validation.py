"""Validates a topology before it runs, and reports all problems at once (for section 4.1's dynamic topologies)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from millwheel.errors import Problem, did_you_mean
from millwheel.master.cycles import find_cycle
from millwheel.master.record_compatibility import UNTYPED, stream_difference
from millwheel.model.catalog import DEAD_LETTER_TYPE, Catalog, outputs_of
from millwheel.model.limits import MAX_KEY_BYTES
from millwheel.model.stream_names import dead_letter_stream, is_full, local_name, owner_of
from millwheel.rpc.v1 import topology_pb2 as specs

__all__ = ["MAX_NAME_LENGTH", "validate"]

MAX_NAME_LENGTH: Final = 200
_NEEDS_STRONG: Final = (specs.LATE_POLICY_DROP, specs.LATE_POLICY_DIVERT)
"""With weak productions, a record that was found on time and sent could be found late after a restart (G10)."""
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def validate(spec: specs.TopologySpec, known: Catalog) -> list[Problem]:
    """Return the problems of ``spec`` alone and beside the topologies live in ``known``; empty if it may run.

    A live topology of the same name is ignored here. The submission checks it.
    """
    problems = [*_names(spec), *_computations(spec), *_ownership(spec), *_streams(spec, known), *_inputs(spec, known)]
    if not problems:
        problems += _cycles(spec, known)
    return problems


def _names(spec: specs.TopologySpec) -> Iterator[Problem]:
    yield from _name(f"topology {spec.name!r}", spec.name)
    for computation in spec.computations:
        yield from _name(f"computation {computation.name!r}", computation.name)
    for stream in _mentioned(spec):
        where = f"stream {stream!r}"
        if not is_full(stream):
            yield Problem(where, f"name it in full, with its topology: '{spec.name}/{stream}'")
            continue
        if owner_of(stream) != spec.name:
            yield from _name(where, owner_of(stream))
        yield from _name(where, local_name(owner_of(stream), stream))


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
        if not computation.inputs and not computation.begins_by_itself:
            yield Problem(where, "it has no inputs, so it would never run: give it inputs=")
        if computation.inputs and computation.begins_by_itself:
            yield Problem(where, "it begins by itself, so it has no inputs: leave out inputs=")
        for stream in _twice([edge.stream for edge in computation.inputs]):
            yield Problem(where, f"it reads stream {stream!r} twice: name it once, with one key")
        for edge in computation.inputs:
            if problem := _key_problem(edge.key):
                yield Problem(f"{where}, input {edge.stream!r}", problem)
        if computation.late_policy == specs.LATE_POLICY_DIVERT and not computation.late_stream:
            yield Problem(where, "its late records are diverted, but to no stream: name one")
        if not computation.strong_productions and computation.late_policy in _NEEDS_STRONG:
            yield Problem(where, "it drops or diverts late records, so its productions must be strong")


def _key_problem(key: specs.KeySpec) -> str:
    """What is wrong with how an input's key is named. Empty: nothing."""
    if bool(key.fields) == bool(key.function):
        return "name its key: either fields or a function"
    if key.fields and key.HasField("same_key"):
        return "its key is one for all records (same_key), and in fields: leave one of them out"
    if key.rows_by_function and not key.HasField("same_key"):
        return "rows_by_function says who uses same_key, which is not set: leave it out"
    if (size := len(key.same_key.encode())) > MAX_KEY_BYTES:
        return f"its same_key has {size:,} bytes, and {MAX_KEY_BYTES:,} is the limit: name a shorter one"
    return ""


def _ownership(spec: specs.TopologySpec) -> Iterator[Problem]:
    """A stream belongs to the topology that its name begins with. Only that topology declares and writes it."""
    for stream in spec.streams:
        owner, own = owner_of(stream.name), owner_of(stream.name) == spec.name
        if own and stream.external:
            yield Problem(f"stream {stream.name!r}", "it belongs to this topology: declare it without external()")
        elif not own and not stream.external:
            yield Problem(
                f"stream {stream.name!r}",
                f"it belongs to topology {owner!r}: read it by external({stream.name!r}, ...), or declare a stream of "
                f"{spec.name!r} under another name",
            )
    for computation in spec.computations:
        for output in outputs_of(computation):
            if owner_of(output) != spec.name:
                yield Problem(
                    f"computation {computation.name!r}, output {output!r}",
                    f"the stream belongs to topology {owner_of(output)!r}, which alone writes it: produce to a stream "
                    f"of {spec.name!r}, which {owner_of(output)!r} can read by external('{spec.name}/...', ...)",
                )


def _streams(spec: specs.TopologySpec, known: Catalog) -> Iterator[Problem]:
    for name in _twice([stream.name for stream in spec.streams]):
        yield Problem(f"stream {name!r}", "it is declared twice: declare it once")
    for stream in spec.streams:
        if stream.name == dead_letter_stream(spec.name) and stream.record_type not in UNTYPED | {DEAD_LETTER_TYPE}:
            yield Problem(f"stream {stream.name!r}", "the name is taken by the topology's dead letters: use another")
        for other, record in known.live_topologies():
            for theirs in record.spec.streams:
                if other != spec.name and theirs.name == stream.name:
                    yield from _conflicts(stream, theirs, other)


def _conflicts(mine: specs.StreamSpec, theirs: specs.StreamSpec, other: str) -> Iterator[Problem]:
    """A reader's type must be able to read what the owner of the stream writes. Two readers need not agree."""
    if mine.external and theirs.external:
        return
    written, read = (theirs, mine) if mine.external else (mine, theirs)
    found = stream_difference(written, read, replaces=False)
    if found is None:
        return
    here, there = "here", f"in topology {other!r}"
    writes, reads = (there, here) if mine.external else (here, there)
    if found.unreadable:
        why = "; ".join(found.unreadable)
        what = f"its type {found.read} {reads} cannot read it as {found.written} {writes} ({why})"
    else:
        both = {writes: found.written, reads: found.read}
        what = f"its {found.what} is {both[here]} here and {both[there]} {there}"
    yield Problem(f"stream {mine.name!r}", f"{what}: declare it alike, or use another stream name")


def _inputs(spec: specs.TopologySpec, known: Catalog) -> Iterator[Problem]:
    others = [record.spec for name, record in known.live_topologies() if name != spec.name]
    produced = set[str]().union(*map(_produced, [spec, *others]))
    for computation in spec.computations:
        for edge in computation.inputs:
            if edge.stream not in produced:
                yield Problem(
                    f"computation {computation.name!r}, input {edge.stream!r}",
                    f"no computation or injector produces this stream{did_you_mean(edge.stream, sorted(produced))}: "
                    "declare it by source(), or submit the topology that produces it first",
                )


def _produced(spec: specs.TopologySpec) -> set[str]:
    """Return the streams that computations or injectors of a topology feed, and that of its dead letters."""
    injected = [stream.name for stream in spec.streams if stream.injected]
    outputs = [output for computation in spec.computations for output in outputs_of(computation)]
    return {*injected, *outputs, dead_letter_stream(spec.name)}


def _cycles(spec: specs.TopologySpec, known: Catalog) -> Iterator[Problem]:
    others = [record.spec for name, record in known.live_topologies() if name != spec.name]
    cycle = find_cycle([spec, *others])
    if cycle:
        yield Problem(
            f"topology {spec.name!r}",
            f"a cycle: {' -> '.join(cycle)}; each of its computations would wait for the others' low watermarks "
            "for ever: declare one of its edges as feedback (feedback=True)",
        )
