"""What the audit log shows of a topology before and after a change."""

from __future__ import annotations

from millwheel.master.replica import MasterReplica
from millwheel.model.wording import state_name
from millwheel.rpc.access.audit import summary

__all__ = ["described_topology"]


def described_topology(replica: MasterReplica, name: str) -> dict[str, object] | None:
    """Return the state of a topology, or None if it is unknown, or another master leads."""
    known = replica.catalog
    record = known.topologies.get(name) if known is not None else None
    if known is None or record is None:
        return None
    maps = [known.maps[one] for one in record.incarnations.values() if one in known.maps]
    return {
        "state": state_name(record.state),
        "version": record.version,
        "code_digest": record.spec.code.digest,
        "intervals": sum(sum(1 for _ in one) for one in maps),
        **({"quota": summary(record.quota)} if record.HasField("quota") else {}),
    }
