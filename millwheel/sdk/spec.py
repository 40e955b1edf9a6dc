"""The spec of a topology: a deterministic protobuf message for the cluster, and its digest (section 7.1)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from millwheel.model.stream_names import DEAD_LETTERS, full_name
from millwheel.rpc.v1 import topology_pb2
from millwheel.sdk.codecs import ValueFormat
from millwheel.sdk.declarations import ComputationDeclaration, StreamKind
from millwheel.sdk.error_texts import error_message
from millwheel.sdk.errors import Problem
from millwheel.sdk.plan import Plan, PlannedStream
from millwheel.sdk.record_schema import record_schema
from millwheel.sdk.schema import state_schema
from millwheel.sdk.typeinfo import type_name

__all__ = ["build_spec"]


def build_spec(plan: Plan) -> tuple[topology_pb2.TopologySpec, list[Problem]]:
    """The spec of a topology, without a code package.

    It gives all streams by their full names. Streams and computations are in the order of their names. The dead-letter
    stream is not listed, because every topology has one.

    Returns:
        The spec, and a problem for each part that a spec cannot describe.
    """
    spec = topology_pb2.TopologySpec(name=plan.name)
    problems: list[Problem] = []
    for name in sorted(plan.streams.keys() - {DEAD_LETTERS}, key=lambda one: full_name(plan.name, one)):
        with _noting(problems, plan.streams[name].where):
            spec.streams.append(_stream(plan, plan.streams[name]))
    for name in sorted(plan.computations):
        with _noting(problems, plan.computations[name].where):
            spec.computations.append(_computation(plan, plan.computations[name]))
    return spec, problems


@contextmanager
def _noting(problems: list[Problem], where: str) -> Iterator[None]:
    """Convert an exception into a problem, so that ``validate`` finds every error that ``submit`` would raise."""
    try:
        yield
    except Exception as error:
        problems.append(Problem(where, f"it cannot be described to a cluster: {error_message(error)}"))


def _stream(plan: Plan, stream: PlannedStream) -> topology_pb2.StreamSpec:
    value_format = stream.codec.format if stream.codec is not None else ValueFormat.MSGPACK
    name = full_name(plan.name, stream.name)
    spec = topology_pb2.StreamSpec(name=name, record_type=stream.type_name, format=value_format.value)
    schema = record_schema(stream.type) if stream.codec is not None and value_format is ValueFormat.MSGPACK else None
    if schema is not None:
        spec.schema.CopyFrom(schema)
    declaration = stream.declaration
    if declaration is None:
        return spec
    spec.external = declaration.kind is StreamKind.EXTERNAL
    if declaration.kind is StreamKind.SOURCE:
        spec.injected = True
        spec.id_slack_us = declaration.id_slack
        spec.allowed_skew_us = declaration.allowed_skew or 0
        spec.expected_injectors.extend(sorted(declaration.injectors))
    if declaration.retention is not None:
        spec.retention.CopyFrom(declaration.retention.to_proto())
    return spec


def _computation(plan: Plan, computation: ComputationDeclaration) -> topology_pb2.ComputationSpec:
    options, made = computation.options, computation.computation
    return topology_pb2.ComputationSpec(
        name=computation.name,
        implementation=computation.implementation,
        inputs=[
            topology_pb2.InputSpec(
                stream=full_name(plan.name, name),
                key=extractor.to_proto(plan.streams[name].type),
                feedback=extractor.feedback,
            )
            for name, extractor in sorted(computation.inputs.items(), key=lambda one: full_name(plan.name, one[0]))
        ],
        outputs=sorted(full_name(plan.name, name) for name in computation.outputs),
        exactly_once=options.exactly_once,
        strong_productions=options.strong,
        late_policy=options.late.action.value,
        late_stream=full_name(plan.name, options.late.stream) if options.late.stream else "",
        failure_policy=options.on_failure.to_proto(),
        state_type=type_name(computation.state_type),
        straggler_delay_us=options.straggler_delay,
        begins_by_itself=made is not None and made._begins_with is not None,
        reads=made._reads() if made is not None else "",
        state=state_schema(
            computation.state_type,
            made.state_codec if made is not None else None,
            made.state_version if made is not None else 1,
        ),
    )
