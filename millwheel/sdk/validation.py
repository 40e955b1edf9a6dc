"""Validation of a topology: all mistakes at once, before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from millwheel.model.stream_names import DEAD_LETTERS, full_name, is_full, local_name, owner_of
from millwheel.sdk.codecs import Codec, codec_for
from millwheel.sdk.computation import overrides_migrate
from millwheel.sdk.declarations import ComputationDeclaration, StreamDeclaration, StreamKind
from millwheel.sdk.errors import Problem, UnsupportedTypeError, did_you_mean
from millwheel.sdk.graph import cycles, describe_cycle, is_downstream
from millwheel.sdk.growing.codec import any_state_codec, growing_problems
from millwheel.sdk.keys import KeyExtractor
from millwheel.sdk.migration import MAX_STATE_VERSION
from millwheel.sdk.option_checks import stream_option_problems
from millwheel.sdk.options import LateAction
from millwheel.sdk.plan import Plan, PlannedStream, is_known
from millwheel.sdk.typeinfo import accepts, type_name

__all__ = ["MAX_NAME", "find_problems"]

MAX_NAME: Final = 63
"""The most characters in the name of a topology or a computation."""
_RESOURCE_NAME: Final = re.compile(rf"[a-z][a-z0-9-]{{0,{MAX_NAME - 1}}}")
_STREAM_NAME: Final = re.compile(r"[a-z][a-z0-9_.-]{0,127}")


def find_problems(
    plan: Plan, declarations: Sequence[StreamDeclaration], added: Sequence[ComputationDeclaration]
) -> list[Problem]:
    """All mistakes of a topology.

    Also sets the codec of each stream that has one.

    Args:
        plan: The topology's plan.
        declarations: The calls that declare streams, in order, with repetitions.
        added: The calls of ``add``, in order, with repetitions.
    """
    return [
        *_names(plan, added),
        *_declared_twice(plan, declarations),
        *(problem for computation in added for problem in computation.problems),
        *_streams(plan),
        *_computations(plan),
        *_feedback(plan),
        *_undeclared_cycles(plan),
    ]


# Names.


def _names(plan: Plan, added: Sequence[ComputationDeclaration]) -> Iterator[Problem]:
    rule = f"a name is 1 to {MAX_NAME} of a-z, 0-9 and -, beginning with a letter"
    if not _fits(_RESOURCE_NAME, plan.name):
        yield Problem(f"topology {plan.name!r}", rule)
    if not added and not any(
        one.declaration and one.declaration.kind is StreamKind.SOURCE for one in plan.streams.values()
    ):
        yield Problem(
            f"topology {plan.name!r}", "it has neither computations nor sources: add(...) one, or declare a source(...)"
        )
    for name in dict.fromkeys(one.name for one in added):
        if not _fits(_RESOURCE_NAME, name):
            yield Problem(f"computation {name!r}", f"{rule}: give it another one with name=")
        same = [one.implementation for one in added if one.name == name]
        if len(same) > 1:
            message = f"{len(same)} computations have this name ({', '.join(same)}): give them others with name="
            yield Problem(f"computation {name!r}", message)
    for stream in plan.streams.values():
        yield from _stream_name(stream)


def _stream_name(stream: PlannedStream) -> Iterator[Problem]:
    name: Any = stream.name
    external = stream.declaration is not None and stream.declaration.kind is StreamKind.EXTERNAL
    foreign = isinstance(name, str) and is_full(name) and (external or stream.declaration is None)
    if external and not foreign:
        yield Problem(stream.where, f"external() takes the full name of another topology's stream: 'TOPOLOGY/{name}'")
    short = local_name(owner_of(name), name) if foreign else name
    if not _fits(_STREAM_NAME, short) or (foreign and not _fits(_RESOURCE_NAME, owner_of(name))):
        yield Problem(stream.where, "a stream's name is 1 to 128 of a-z, 0-9, _, . and -, beginning with a letter")


def _fits(rule: re.Pattern[str], name: Any) -> bool:
    return isinstance(name, str) and rule.fullmatch(name) is not None


def _declared_twice(plan: Plan, declarations: Sequence[StreamDeclaration]) -> Iterator[Problem]:
    first: dict[str, StreamDeclaration] = {}
    for declaration in declarations:
        before = first.setdefault(declaration.name, declaration)
        if before != declaration and before.type == declaration.type:
            message = f"declared twice, by {before.kind.value}() and {declaration.kind.value}(): keep one of them"
            yield Problem(f"stream {declaration.name!r}", message)
    for stream in plan.streams.values():
        for claim in stream.claims[1:]:
            if claim.type != stream.claims[0].type:
                yield Problem(
                    stream.where,
                    f"has two types: {stream.type_name} by {stream.claims[0].by}, "
                    f"and {type_name(claim.type)} by {claim.by}: a stream has one type",
                )


# Streams.


def _streams(plan: Plan) -> Iterator[Problem]:
    for stream in plan.streams.values():
        yield from _origin(plan, stream)
        declared = stream.declaration
        if declared is not None:
            for message in stream_option_problems(
                id_slack=declared.id_slack,
                allowed_skew=declared.allowed_skew,
                injectors=declared.injectors,
                retention=declared.retention,
            ):
                yield Problem(stream.where, message)
        yield from _type(stream)


def _origin(plan: Plan, stream: PlannedStream) -> Iterator[Problem]:
    kind = stream.declaration.kind if stream.declaration is not None else None
    if isinstance(stream.name, str) and is_full(stream.name):
        yield from _foreign(plan, stream)
        return
    if stream.name == DEAD_LETTERS:
        stated_by_hand = kind is not None or any(stream.name in one.outputs for one in plan.computations.values())
        if stated_by_hand:
            yield Problem(
                stream.where, "is written by the system alone: consume it, but leave it out of the declarations"
            )
        elif not stream.producers:
            yield Problem(stream.where, "nothing writes dead letters: no computation has on_failure=dead_letter()")
        return
    used = bool(stream.producers or stream.consumers)
    others = [
        str(one.name) for one in plan.streams.values() if one is not stream and (one.producers or one.declaration)
    ]
    hint = did_you_mean(str(stream.name), others)
    if kind is StreamKind.STREAM and not used:
        yield Problem(stream.where, f"is declared, but no computation here produces or consumes it{hint}")
    elif kind in (None, StreamKind.STREAM) and not stream.producers:
        yield Problem(
            stream.where,
            f"is consumed by {_quoted(stream.consumers)}, but nothing here produces it{hint}: declare it "
            "with source(...) if injectors feed it, or with external(...) if another topology produces it",
        )


def _foreign(plan: Plan, stream: PlannedStream) -> Iterator[Problem]:
    """A stream that is called by its full name: another topology's."""
    name, owner = stream.name, owner_of(stream.name)
    if owner == plan.name:
        short = local_name(owner, name)
        yield Problem(stream.where, f"belongs to this topology, which calls it by its short name: {short!r}")
    elif stream.producers:
        yield Problem(
            stream.where,
            f"belongs to topology {owner!r}, which alone writes it, and {_quoted(stream.producers)} would: write "
            f"a stream of this topology. {owner!r} can read it by external('{full_name(plan.name, 'NAME')}', ...)",
        )
    elif stream.declaration is None:
        yield Problem(
            stream.where, f"belongs to topology {owner!r}: declare it with external({name!r}, Type) to read it here"
        )
    elif not stream.consumers:
        yield Problem(stream.where, "is declared, but no computation here consumes it")


def _type(stream: PlannedStream) -> Iterator[Problem]:
    if not is_known(stream.type):
        if stream.producers or stream.declaration is not None:
            message = "its type is not known: declare it with stream(name, Type), or outputs={name: Type}"
            yield Problem(stream.where, message)
        return
    codec: Any = stream.declaration.codec if stream.declaration is not None else None
    if codec is not None and not isinstance(codec, Codec):
        yield Problem(stream.where, f"codec= takes a millwheel.Codec(encode, decode), not {codec!r:.80}")
        return
    try:
        stream.codec = codec_for(stream.type, stream.where, codec)
    except UnsupportedTypeError as error:
        yield Problem(stream.where, str(error))


# Computations.


def _computations(plan: Plan) -> Iterator[Problem]:
    for computation in plan.computations.values():
        yield from _state(computation)
        yield from _late(plan, computation)
        for name in computation.forwards:
            yield from _forwarded(plan, computation, computation.inputs, name, "the computation passes on")
        for name, extractor in computation.inputs.items():
            yield from _input(computation, plan.streams[name], extractor)


def _state(computation: ComputationDeclaration) -> Iterator[Problem]:
    if computation.computation is None or not is_known(computation.state_type):
        return
    codec: Any = computation.computation.state_codec
    if codec is not None and not isinstance(codec, Codec):
        yield Problem(
            computation.where, f"state_codec must be a millwheel.Codec(encode, decode, new), not {codec!r:.80}"
        )
        return
    if found := [*growing_problems(computation.computation, computation.state_type)]:
        yield from (Problem(computation.where, message) for message in found)
        return
    yield from _version(computation)
    try:
        any_state_codec(computation.state_type, computation.where, codec)
    except UnsupportedTypeError as error:
        yield Problem(computation.where, str(error).replace("a codec=", "a state_codec = "))


def _version(declared: ComputationDeclaration) -> Iterator[Problem]:
    made = declared.computation
    assert made is not None
    version: Any = made.state_version
    if type(version) is not int or not 1 <= version <= MAX_STATE_VERSION:
        yield Problem(declared.where, f"state_version must be a whole number from 1, not {version!r:.80}")
    elif version > 1 and not overrides_migrate(made):
        message = f"its state_version is {version}, and nothing says how earlier states are read: define migrate"
        yield Problem(declared.where, f"{message}(self, stored)")
    elif version == 1 and overrides_migrate(made):
        message = "it defines migrate, and its state_version is 1, so nothing would call it: set state_version = 2"
        yield Problem(declared.where, message)


def _late(plan: Plan, computation: ComputationDeclaration) -> Iterator[Problem]:
    late = computation.options.late
    if late.action is not LateAction.DIVERT:
        return
    if late.stream not in computation.outputs:
        hint = did_you_mean(str(late.stream), list(computation.outputs))
        message = f"late=divert({late.stream!r}) names none of its outputs{hint}: add it to outputs="
        yield Problem(computation.where, message)
        return
    may_be_late = [name for name in computation.inputs if name not in computation.never_late]
    yield from _forwarded(plan, computation, may_be_late, late.stream, f"late=divert({late.stream!r}) sends it")


def _forwarded(
    plan: Plan, computation: ComputationDeclaration, inputs: Iterable[str], to: str, lead: str
) -> Iterator[Problem]:
    """Those of ``inputs`` whose type the stream ``to`` does not accept, although their records are forwarded to it.

    ``lead`` begins the messages.
    """
    target = plan.streams[to]
    for name in inputs:
        stream = plan.streams[name]
        for read in computation.read_types(name, stream.type):
            if is_known(read) and is_known(target.type) and not accepts(target.type, read):
                message = f"{lead} {type_name(read)}, but stream {to!r} carries {target.type_name}"
                yield Problem(f"{computation.where}, input {name!r}", message)


def _input(computation: ComputationDeclaration, stream: PlannedStream, extractor: KeyExtractor) -> Iterator[Problem]:
    if not is_known(stream.type):
        return
    where = f"{computation.where}, input {stream.name!r}"
    for read in computation.read_types(stream.name, stream.type):
        if not is_known(computation.input_type) or not is_known(read) or accepts(computation.input_type, read):
            continue
        made = "" if stream.name not in computation.readings else f", and {type_name(read)} is made of it"
        yield Problem(
            where,
            f"it takes {type_name(computation.input_type)}, but the stream carries {stream.type_name} "
            f"({stream.type_by}){made}",
        )
    for message in extractor.problems(stream.type):
        yield Problem(where, f"{extractor}: {message}")


# The graph.


def _feedback(plan: Plan) -> Iterator[Problem]:
    edges = plan.edges(feedback=True)
    for computation in plan.computations.values():
        for name, extractor in computation.inputs.items():
            stream = plan.streams[name]
            if not extractor.feedback or (stream.declaration and stream.declaration.kind is StreamKind.EXTERNAL):
                continue
            where = f"{computation.where}, input {name!r}"
            if not any(is_downstream(edges, computation.name, producer) for producer in stream.producers):
                yield Problem(
                    where,
                    "is declared feedback=True, but closes no cycle, and its records would be missing from the "
                    "low watermark: remove feedback=True",
                )
            weak = [producer for producer in stream.producers if not plan.computations[producer].options.strong]
            if weak:
                message = f"is a feedback edge, and those are always strong: remove strong=False from {_quoted(weak)}"
                yield Problem(where, message)


def _undeclared_cycles(plan: Plan) -> Iterator[Problem]:
    for cycle in cycles(plan.edges(feedback=False)):
        last = cycle[-1]
        yield Problem(
            f"computation {cycle[0].producer!r}",
            f"is in a cycle, in which its low watermark would wait for itself: {describe_cycle(cycle)}: declare "
            f"the edge that closes it, such as {last.stream!r} of {last.consumer!r}, by "
            "millwheel.key(..., feedback=True)",
        )


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)
