"""Converts catalog records to plain values for -o json and -o yaml. The fields' names and meanings are stable."""

from __future__ import annotations

from millwheel.cli.graph import key_text
from millwheel.cli.output import Plain
from millwheel.model.incarnation import IncarnationId
from millwheel.model.interval_map import interval_from_proto
from millwheel.model.time import Timestamp, format_timestamp
from millwheel.model.wording import state_name
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.v1 import topology_pb2 as specs

__all__ = ["describe_topology", "plain_interval", "plain_quota", "summarize_topology"]


def summarize_topology(record: catalog.TopologyRecord) -> dict[str, Plain]:
    """Describe one topology for a list."""
    return {
        "name": record.spec.name,
        "state": state_name(record.state),
        "version": record.version,
        "computations": len(record.spec.computations),
        "submitted_at": format_timestamp(Timestamp(record.version_at_us or record.submitted_at_us)),
        "state_changed_at": format_timestamp(Timestamp(record.state_changed_at_us)),
        "code_digest": record.spec.code.digest,
    }


def plain_quota(record: catalog.TopologyRecord) -> dict[str, Plain]:
    """Describe what a topology may take of the cluster. None: no limit."""
    quota = record.quota
    return {
        "weight": quota.weight or 1.0,
        "records_per_second": quota.records_per_second or None,
        "intervals": quota.intervals or None,
    }


def describe_topology(found: control.GetTopologyResponse) -> dict[str, Plain]:
    """Describe a topology with everything that the catalog has of it."""
    maps = {record.computation: record for record in found.interval_maps if record.topology}
    record = found.topology
    summary = summarize_topology(record)
    summary["entry_point"] = record.spec.code.entry_point
    summary["quota"] = plain_quota(record)
    summary["fork"] = _fork(record.fork) if record.HasField("fork") else None
    summary["waiting_for"] = list(found.waiting_for)
    summary["computations"] = [
        _computation(one, record.incarnations[one.name], maps.get(one.name)) for one in record.spec.computations
    ]
    summary["streams"] = [_stream(stream) for stream in record.spec.streams]
    summary["logs"] = [{"stream": log.stream, "incarnation": log.incarnation} for log in found.logs]
    return summary


def _fork(origin: catalog.ForkOrigin) -> dict[str, Plain]:
    return {
        "topology": origin.topology,
        "snapshot": origin.snapshot,
        "taken": format_timestamp(Timestamp(origin.taken_at_us)),
        "taken_us": origin.taken_at_us,
    }


def _computation(
    spec: specs.ComputationSpec, incarnation: IncarnationId, intervals: catalog.IntervalMapRecord | None
) -> dict[str, Plain]:
    return {
        "name": spec.name,
        "incarnation": incarnation,
        "implementation": spec.implementation,
        "inputs": [
            {"stream": edge.stream, "key": key_text(edge.key), "feedback": edge.feedback} for edge in spec.inputs
        ],
        "outputs": list(spec.outputs),
        "exactly_once": spec.exactly_once,
        "strong_productions": spec.strong_productions,
        "late_policy": specs.LatePolicy.Name(spec.late_policy).removeprefix("LATE_POLICY_").lower(),
        "intervals": [plain_interval(one) for one in (intervals.intervals if intervals is not None else ())],
    }


def plain_interval(interval: catalog.IntervalRecord) -> dict[str, Plain]:
    """Describe one interval. ``parents`` lists the parent journals that the interval still needs."""
    return {
        "keys": str(interval_from_proto(interval.keys)),
        "journal": interval.journal,
        "sequencer": interval.sequencer,
        "owner": interval.owner.worker_id or None,
        "address": interval.owner.address or None,
        "parents": [parent.journal for parent in interval.parents],
    }


def _retention(stream: specs.StreamSpec) -> dict[str, Plain]:
    """Describe what the stream keeps for subscribers that do not exist yet. None: no bound."""
    return {"age_us": stream.retention.max_age_us or None, "bytes": stream.retention.max_bytes or None}


def _stream(stream: specs.StreamSpec) -> dict[str, Plain]:
    return {
        "name": stream.name,
        "type": stream.record_type,
        "format": specs.ValueFormat.Name(stream.format).removeprefix("VALUE_FORMAT_").lower(),
        "injected": stream.injected,
        "expected_injectors": list(stream.expected_injectors),
        "retention": _retention(stream) if stream.HasField("retention") else None,
    }
