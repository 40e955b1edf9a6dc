"""What a new version of a topology changes, and what it must not change while the rest runs (section 4.1). Pure.

Invariants:

- A computation that stays keeps its incarnation, and with it state, timers and pending productions.
- Its owners change to the new version by a takeover. So no interval ever runs two versions at once.
- Stored values and records in transit are never read as another type.
- A record that is sent again has the key that it had. So the interval that knows its id does the duplicate check (G1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from millwheel.errors import Problem
from millwheel.master.migrating import state_problem
from millwheel.master.record_compatibility import StreamDifference, stream_difference
from millwheel.model.catalog import Catalog, code_of
from millwheel.model.connector_parts import MAKES_BATCHES
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.spreading import ANY_SHARD

__all__ = [
    "MAX_PREVIOUS_BYTES",
    "changed_computations",
    "keep_previous",
    "other_specs",
    "plain_spec",
    "same_spec",
    "update_problems",
]

MAX_PREVIOUS_BYTES: Final = 256 << 10
"""The largest spec that is kept beside its successor, and the largest successor that it is kept beside. The record must
stay far below the 1.5 MB of etcd's requests."""

_SECOND_PHASES: Final = (
    "millwheel.windows.spread_sessions:MergeSessions",
    "millwheel.windows.two_phase:MergePartials",
)
"""Implementations that merge what a first phase computes. Their states are those of a step with one phase."""


def plain_spec(spec: specs.TopologySpec) -> specs.TopologySpec:
    """Return the same spec, where computations name code only if it differs from the topology's."""
    plain = specs.TopologySpec()
    plain.CopyFrom(spec)
    for computation in plain.computations:
        if computation.HasField("code") and computation.code == spec.code:
            computation.ClearField("code")
    return plain


def same_spec(stored: specs.TopologySpec, given: specs.TopologySpec) -> bool:
    """Whether a spec that is submitted is the stored one. What an earlier version does not state is not compared.

    Either of them may be that of an earlier client. An update compares all of it. So it stores what is missing.
    """
    if stored == given:
        return True
    return _without_schemas(stored, given) == _without_schemas(given, stored)


def _without_schemas(spec: specs.TopologySpec, other: specs.TopologySpec) -> specs.TopologySpec:
    """A spec without the schemas of states that the other one lacks."""
    states = {computation.name: computation.state for computation in other.computations}
    plain = specs.TopologySpec()
    plain.CopyFrom(spec)
    for computation in plain.computations:
        lacks = computation.name in states and not states[computation.name].HasField("schema")
        if lacks and computation.state.HasField("schema"):
            computation.state.ClearField("schema")
    return plain


def keep_previous(record: catalog.TopologyRecord, new: specs.TopologySpec) -> None:
    """Keep the version that an update to ``new`` is about to replace, so that an operator can go back to it."""
    record.ClearField("previous")
    if max(record.spec.ByteSize(), new.ByteSize()) <= MAX_PREVIOUS_BYTES:
        record.previous.spec.CopyFrom(record.spec)
        record.previous.version, record.previous.version_at_us = record.version, record.version_at_us


def changed_computations(old: specs.TopologySpec, new: specs.TopologySpec) -> list[str]:
    """Return the computations of both specs whose owners must restart: their code or their declaration has changed."""
    before = {computation.name: _whole(old, computation) for computation in old.computations}
    return [one.name for one in new.computations if one.name in before and before[one.name] != _whole(new, one)]


def _whole(spec: specs.TopologySpec, computation: specs.ComputationSpec) -> specs.ComputationSpec:
    whole = specs.ComputationSpec()
    whole.CopyFrom(computation)
    whole.code.CopyFrom(code_of(spec, computation))
    return whole


def other_specs(name: str, known: Catalog) -> list[specs.TopologySpec]:
    """Return the specs of all live topologies except ``name``."""
    return [record.spec for other, record in known.live_topologies() if other != name]


def update_problems(
    old: specs.TopologySpec, new: specs.TopologySpec, others: Iterable[specs.TopologySpec] = ()
) -> list[Problem]:
    """Return why ``new`` cannot replace ``old`` while it runs; empty if it can. ``others`` run beside it."""
    return [*_streams(old, new), *_computations(old, new), *_keys(old, new, [old, *others])]


def _streams(old: specs.TopologySpec, new: specs.TopologySpec) -> Iterator[Problem]:
    before = {stream.name: stream for stream in old.streams}
    for stream in new.streams:
        was = before.get(stream.name)
        if was is None or stream.external:  # an external stream is compared with what its owner writes
            continue
        difference = stream_difference(was, stream, replaces=True)
        if difference is not None:
            yield _changed(stream.name, difference)


def _changed(stream: str, found: StreamDifference) -> Problem:
    why = f" ({'; '.join(found.unreadable)})" if found.unreadable else ""
    remedy = ", or keep all fields and give new ones a default" if found.unreadable else ""
    return Problem(
        f"stream {stream!r}",
        f"its {found.what} is {found.read}, and records of it that are on the way were made as {found.written}{why}: "
        f"give the new kind a stream of another name{remedy}",
    )


def _computations(old: specs.TopologySpec, new: specs.TopologySpec) -> Iterator[Problem]:
    before = {computation.name: computation for computation in old.computations}
    for computation in new.computations:
        was = before.get(computation.name)
        if was is None:
            continue
        where = f"computation {computation.name!r}"
        if computation.strong_productions and not was.strong_productions:
            yield Problem(
                where,
                "its productions were weak, and what was sent before its commit would be sent twice as strong ones: "
                "keep strong=False, or give the new one another name=",
            )
        if (was.implementation in _SECOND_PHASES) is not (computation.implementation in _SECOND_PHASES):
            yield Problem(
                where,
                "spread= begins or ends, and the first phase has what is open, or is to have it: give the step another "
                "name=, to begin without state",
            )
        if was.reads and computation.reads and was.reads != computation.reads:
            yield Problem(
                where,
                f"it reads {computation.reads!r}, and its positions are those of {was.reads!r}: give the stream of the "
                "other source another name. If both are one source that is read in another way, let identity() of the "
                "source return what both have in common",
            )
        problem = state_problem(was, computation)
        if problem:
            yield Problem(where, problem)


def _keys(old: specs.TopologySpec, new: specs.TopologySpec, running: Sequence[specs.TopologySpec]) -> Iterator[Problem]:
    """Report inputs whose key changes, if a record that took effect may be sent again and get a new key.

    Strong productions keep the key of their commit. Injected records and weak productions get a key each time they
    are sent, and the interval of a new key does not know their ids.

    The shards of a sink keep their keys in any case, if they are for records in order. In another shard, a record would
    be written before former ones of its key (G15).
    """
    before = {(one.name, input_.stream): input_.key for one in old.computations for input_ in one.inputs}
    for computation in new.computations:
        for input_ in computation.inputs if computation.exactly_once else ():
            was = before.get((computation.name, input_.stream))
            change = "" if was is None else _key_change(was, input_.key)
            if (
                change
                and was is not None
                and computation.implementation == MAKES_BATCHES
                and _reorders(was, input_.key)
            ):
                yield Problem(
                    f"computation {computation.name!r}",
                    f"its input {input_.stream!r} is keyed by {change}: a record would be written before former ones "
                    "of its key, which wait in another shard; keep the key and shards=, or give the sink another name",
                )
                continue
            if not change or _keeps_keys(running, input_.stream):
                continue
            yield Problem(
                f"computation {computation.name!r}",
                f"its input {input_.stream!r} is keyed by {change}: a record that took effect and is sent again would "
                "take effect under the other key, too; give the computation another name=",
            )


def _reorders(was: specs.KeySpec, now: specs.KeySpec) -> bool:
    """Whether records of a key may go to another shard of a sink than former ones, and must not."""
    return not (ANY_SHARD in was.function and ANY_SHARD in now.function)


def _key_change(was: specs.KeySpec, now: specs.KeySpec) -> str:
    """Describe how the extraction of a key has changed. Empty: it has not, as far as it can be seen."""
    if _key(was) != _key(now):
        return f"{_key(now)}, and was by {_key(was)}"
    if was.code != now.code and _python(was) == _python(now) != "":
        return f"{_key(now)} as before, but this is other code, or it was made with other values"
    return ""


def _key(key: specs.KeySpec) -> str:
    """Describe the extraction of a key.

    A function is known by its qualified name: its module depends on how the program starts. The name of a key after the
    steps of a stream has no module.
    """
    _, colon, name = key.function.rpartition(":")
    return ", ".join(key.fields) or (f"{name}()" if colon else name)


def _python(key: specs.KeySpec) -> str:
    """The kind of Python that compiled the code of a key. Others compile the same text to other code."""
    return key.code.partition(":")[0]


def _keeps_keys(running: Sequence[specs.TopologySpec], stream: str) -> bool:
    """Whether all records of a stream are strong productions, in every topology that produces it."""
    injected = any(one.name == stream and one.injected for spec in running for one in spec.streams)
    computations = [one for spec in running for one in spec.computations]
    producers = [one for one in computations if stream in one.outputs or stream == one.late_stream]
    return not injected and bool(producers) and all(one.strong_productions for one in producers)
