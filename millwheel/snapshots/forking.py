"""The record of a topology that is restored under another name: a fork (docs/decisions/0034-snapshots.md). Pure."""

from __future__ import annotations

from millwheel.model.incarnation import injector_group
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.worker.names import RestoredNames

__all__ = ["begin_lives", "refuse_unnamed_queries", "restored_lives", "restored_record"]


def restored_record(manifest: wire.SnapshotManifest, name: str) -> catalog.TopologyRecord:
    """The record of the snapshot, for a topology of that name. Its incarnations are those of the snapshot.

    A fork keeps the name within which ids are hashed: its receivers have these hashes. What the original's operators
    have asked for and allowed is not the fork's. Its lives of injected streams still have the original's numbers.
    """
    record, original = catalog.TopologyRecord(), manifest.topology.spec.name
    record.CopyFrom(manifest.topology)
    if name == original:
        return record
    names = RestoredNames({}, original, name)
    _rename(record.spec, names, name)
    for field in ("quota", "request_id", "cancelled_by", "injected_since", "previous"):
        record.ClearField(field)
    record.injected_since.update(
        {names.stream(one): number for one, number in manifest.topology.injected_since.items()}
    )
    within = manifest.topology.fork.id_topology or original
    record.fork.CopyFrom(
        catalog.ForkOrigin(
            topology=original, snapshot=manifest.name, taken_at_us=manifest.taken_at_us, id_topology=within
        )
    )
    return record


def restored_lives(manifest: wire.SnapshotManifest, name: str) -> dict[str, int]:
    """The numbers of the lives of the injected streams in the snapshot, by the groups of a fork of that name."""
    names = RestoredNames({}, manifest.topology.spec.name, name)
    return {injector_group(names.stream(one)): number for one, number in manifest.topology.injected_since.items()}


def begin_lives(record: catalog.TopologyRecord, number: int) -> None:
    """Let the injected streams of a fork begin lives with this number.

    Readers of an earlier topology of the name have ids of that one, and drop them at a new life (G1).
    """
    record.injected_since.update(dict.fromkeys(record.injected_since, number))


def _rename(spec: specs.TopologySpec, names: RestoredNames, name: str) -> None:
    spec.name = name
    for stream in spec.streams:
        stream.name = names.stream(stream.name)
    for computation in spec.computations:
        for edge in computation.inputs:
            edge.stream = names.stream(edge.stream)
        computation.outputs[:] = [names.stream(one) for one in computation.outputs]
        computation.late_stream = names.stream(computation.late_stream)


def refuse_unnamed_queries(names: RestoredNames, fork: str) -> None:
    """Refuse a fork that has ids of a query without its stream's name: original and fork would have one cursor (G1).

    A batch that is committed for one of them would then be skipped for the other one.
    """
    if unnamed := sorted(query for query in names.queries if not names.names_stream(query)):
        raise RequestError(
            FailureCode.FAILED_PRECONDITION,
            f"there can be no fork {fork!r}: records of query {unnamed[0]!r} are in it, and original and fork would "
            "have one cursor for it, because its name is not QUERY/TOPOLOGY/STREAM",
            "restore it under its own name, into another cluster",
            reason="FORK_REFUSED",
        )
