"""The plan of a topology: each stream with its type, producers and consumers (section 3, figure 2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from millwheel.model.stream_names import DEAD_LETTERS
from millwheel.sdk.codecs import ValueCodec
from millwheel.sdk.dead_letters import DeadLetter
from millwheel.sdk.declarations import UNKNOWN, ComputationDeclaration, DerivedStream, StreamDeclaration
from millwheel.sdk.graph import Edge
from millwheel.sdk.options import FailureAction, LateAction
from millwheel.sdk.typeinfo import members, normalise, type_name

__all__ = ["Plan", "PlannedStream", "TypeClaim", "is_known", "lay_out"]


@dataclass(frozen=True, slots=True)
class TypeClaim:
    """A statement of a stream's type. ``by`` says what states it, for messages."""

    type: Any
    by: str


@dataclass(slots=True)
class PlannedStream:
    """One stream of a topology. ``type`` is UNKNOWN if nothing states it."""

    name: str
    """The name by which the topology's code calls it: a short name, or the full name of another topology's stream."""
    declaration: StreamDeclaration | None = None
    claims: list[TypeClaim] = field(default_factory=list)
    type: Any = UNKNOWN
    type_by: str = ""
    producers: list[str] = field(default_factory=list)
    consumers: list[str] = field(default_factory=list)
    codec: ValueCodec | None = None
    """Set as soon as the type is known and has a codec."""

    @property
    def where(self) -> str:
        """The stream's name in problems and errors."""
        return f"stream {self.name!r}"

    @property
    def type_name(self) -> str:
        """The type as a user would write it."""
        return type_name(self.type)


@dataclass(slots=True)
class Plan:
    """All parts of a topology. Validation checks the plan, and compilation and the spec use it."""

    name: str
    streams: dict[str, PlannedStream]
    computations: dict[str, ComputationDeclaration]
    derived: dict[str, list[DerivedStream]] = field(default_factory=dict)
    """By stream: those that are made from its records where these are produced."""

    def edges(self, *, feedback: bool) -> list[Edge]:
        """The edges between computations. If ``feedback`` is False, declared feedback edges are left out."""
        return [
            Edge(producer, stream, consumer)
            for consumer, computation in self.computations.items()
            for stream, extractor in computation.inputs.items()
            if feedback or not extractor.feedback
            for producer in self.streams[stream].producers
        ]


def is_known(annotation: Any) -> bool:
    """Whether a type is not UNKNOWN."""
    return annotation is not UNKNOWN


def lay_out(
    name: str,
    declarations: Iterable[StreamDeclaration],
    computations: Mapping[str, ComputationDeclaration],
    derived: Iterable[DerivedStream] = (),
) -> Plan:
    """Build the plan of a topology, and find the types of its streams.

    A stream's type comes from the first of these rules that gives one:

    - Its declaration: ``source``, ``stream``, ``external``, ``outputs=`` or the producer's ``declared_outputs()``.
    - The input type of a consumer that takes a single type.
    - For a consumer that takes a union: the member that none of its other inputs has.
    - For a stream of forwarded records, such as diverted late ones: the type of the inputs.
    - For a stream whose consumers, if any, all take Any: any value that MessagePack can encode.
    """
    plan = Plan(name, {}, dict(computations))
    for declaration in declarations:
        stream = _stream(plan, declaration.name)
        stream.declaration = stream.declaration or declaration
        stream.claims.append(TypeClaim(normalise(declaration.type), f"{declaration.kind.value}()"))
    for one in derived:
        plan.derived.setdefault(one.base, []).append(one)
    for computation in plan.computations.values():
        for given in computation.inputs:
            _stream(plan, given).consumers.append(computation.name)
        _add_derived(plan, computation)
        for given, stated in computation.outputs.items():
            stream = _stream(plan, given)
            stream.producers.append(computation.name)
            if is_known(stated):
                said = "declared_outputs()" if given in computation.declared_outputs else "outputs="
                stream.claims.append(TypeClaim(normalise(stated), f"{said} of computation {computation.name!r}"))
        if computation.options.on_failure.action is FailureAction.DEAD_LETTER:
            _add_dead_letters(plan, computation)
    _find_types(plan)
    return plan


def _add_derived(plan: Plan, computation: ComputationDeclaration) -> None:
    """Add the streams that are made from the computation's outputs, and from these in turn."""
    bases = list(computation.outputs)
    for base in bases:
        for one in plan.derived.get(base, ()):
            if one.name not in computation.outputs:
                computation.outputs[one.name] = one.type
                bases.append(one.name)


def _stream(plan: Plan, name: str) -> PlannedStream:
    return plan.streams.setdefault(name, PlannedStream(name))


def _add_dead_letters(plan: Plan, computation: ComputationDeclaration) -> None:
    stream = _stream(plan, DEAD_LETTERS)
    stream.producers.append(computation.name)
    if not stream.claims:
        stream.claims.append(TypeClaim(DeadLetter, "on_failure=dead_letter()"))


def _find_types(plan: Plan) -> None:
    for stream in plan.streams.values():
        if stream.claims:
            _settle(stream, stream.claims[0].type, stream.claims[0].by)
    for computation in plan.computations.values():
        offers = members(computation.input_type)
        if len(offers) == 1 and is_known(offers[0]) and offers[0] is not Any:
            for name in computation.inputs:
                if name not in computation.readings:
                    _settle(plan.streams[name], offers[0], f"taken so by computation {computation.name!r}")
    while any(_eliminate(plan, computation) for computation in plan.computations.values()):
        pass
    while sum(_type_forwarded(plan, computation) for computation in plan.computations.values()):
        pass
    for stream in plan.streams.values():
        takes_anything = all(plan.computations[name].input_type is Any for name in stream.consumers)
        if stream.producers and takes_anything:
            _settle(stream, Any, "anything, for no type is stated")


def _settle(stream: PlannedStream, annotation: Any, by: str) -> bool:
    """Give a stream its type, if it has none. Returns whether it had none."""
    if is_known(stream.type):
        return False
    stream.type, stream.type_by = annotation, by
    return True


def _eliminate(plan: Plan, computation: ComputationDeclaration) -> bool:
    """For a computation that takes a union: match its only input without a type to the only member without an input."""
    inputs = [plan.streams[name] for name in computation.inputs if name not in computation.readings]
    untyped = [stream for stream in inputs if not is_known(stream.type)]
    claimed = [part for stream in inputs if is_known(stream.type) for part in members(stream.type)]
    offers = [offer for offer in members(computation.input_type) if is_known(offer) and offer is not Any]
    left = [offer for offer in offers if offer not in claimed]
    if len(untyped) != 1 or len(left) != 1:
        return False
    _settle(untyped[0], left[0], f"taken so by computation {computation.name!r}")
    return True


def _type_forwarded(plan: Plan, computation: ComputationDeclaration) -> int:
    """Give the streams of a computation's own inputs their types. Returns how many of them had none."""
    types = {name: computation.read_types(name, plan.streams[name].type) for name in computation.inputs}
    read = _only(one for each in types.values() for one in each)
    lately = _only(one for name, each in types.items() if name not in computation.never_late for one in each)
    late, where = computation.options.late, f"computation {computation.name!r}"
    given = [(name, read, f"inputs of {where}, as they came") for name in computation.forwards]
    if late.action is LateAction.DIVERT and late.stream in plan.streams:
        given.append((late.stream, lately, f"late records of {where}"))
    return sum(_settle(plan.streams[name], type_, by) for name, type_, by in given if is_known(type_))


def _only(types: Iterable[Any]) -> Any:
    """The type, if all of them are the same one. Otherwise UNKNOWN."""
    first, *others = [*types] or [UNKNOWN]
    return UNKNOWN if any(one != first for one in others) else first
