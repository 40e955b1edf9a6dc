"""What a fork needs of its cluster: a topology that is restored from a snapshot under another name. Pure."""

from __future__ import annotations

from millwheel.model.catalog import Catalog
from millwheel.model.formats import FORKS
from millwheel.model.stream_names import owner_of
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["refuse_fork"]


def refuse_fork(known: Catalog, record: catalog.TopologyRecord, *, renamed: bool) -> None:
    """Raise RequestError if the topology is a fork, and the cluster cannot have it.

    - Processes of an older format would hash ids within the fork's name, and load its code under the original's (G1).
    - A topology that has read the streams of an earlier topology of this name knows that one's ids. The fork may have
      the same positions for other records, and they would be dropped as copies (G1).

    Args:
        known: The catalog.
        record: The topology to be restored.
        renamed: Whether the snapshot has it under another name.
    """
    if record.HasField("fork") and known.format < FORKS:
        raise RequestError(
            FailureCode.FAILED_PRECONDITION,
            f"topology {record.spec.name!r} is a fork, and this cluster has format {known.format}: forks need {FORKS}",
            f"let all processes run this version, and raise the format by cluster.format = {FORKS}, or by "
            f"`millwheel server start-dev --cluster-format {FORKS}` (docs/upgrading.md)",
            reason="FORMAT_TOO_OLD",
        )
    if not renamed:
        return
    name = record.spec.name
    for other, live in known.live_topologies():
        read = {edge.stream for one in live.spec.computations for edge in one.inputs}
        if other != name and (streams := sorted(stream for stream in read if owner_of(stream) == name)):
            raise RequestError(
                FailureCode.FAILED_PRECONDITION,
                f"topology {other!r} reads stream {streams[0]!r} of an earlier topology {name!r}, and would take "
                "records of the fork for copies of earlier ones",
                "give the fork a name that no topology has had",
                reason="NAME_READ",
            )
