"""What all processes of a cluster agree on: the record ``cluster/settings``. See docs/upgrading.md."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from millwheel.config import ClusterSection
from millwheel.coordination.contract import Compare, Coordinator, CoordinatorError, Put
from millwheel.coordination.election import next_change
from millwheel.model.catalog_keys import CLUSTER_SETTINGS
from millwheel.model.formats import NEWEST_FORMAT, OLDEST_FORMAT
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1.catalog_pb2 import ClusterSettingsRecord

__all__ = ["ensure_cluster_settings", "until_unknown_format"]

log = logging.getLogger("millwheel")

_RETRY_DELAY_SECONDS: Final = 1.0


async def ensure_cluster_settings(coordinator: Coordinator, section: ClusterSection) -> int:
    """Make sure that this process can take part in the cluster. Store the settings if this is its first start.

    Returns:
        The authority's number of shards.

    Raises:
        RequestError: The cluster has another number of shards, or a format that this version does not know.
        CoordinatorError: The coordinator does not answer.
    """
    while True:
        new = ClusterSettingsRecord(authority_shards=section.authority_shards, format=section.format or NEWEST_FORMAT)
        await coordinator.transact([Compare(CLUSTER_SETTINGS, 0)], [Put(CLUSTER_SETTINGS, new.SerializeToString())])
        entry = await coordinator.get(CLUSTER_SETTINGS)
        if entry is None:
            continue
        record = ClusterSettingsRecord.FromString(entry.value)
        _check_format(record.format)
        _check_shards(record.authority_shards, section.authority_shards)
        if section.format <= record.format:
            return record.authority_shards
        log.warning("the cluster's format rises from %d to %d (cluster.format)", record.format, section.format)
        record.format = section.format
        put = Put(CLUSTER_SETTINGS, record.SerializeToString())
        await coordinator.transact([Compare(CLUSTER_SETTINGS, entry.modified)], [put])


async def until_unknown_format(coordinator: Coordinator) -> None:
    """Raise RequestError when the cluster rises to a format that this version does not know. Returns never."""
    while True:
        try:
            snapshot = await coordinator.list(CLUSTER_SETTINGS)
            for entry in snapshot.entries:
                if entry.key == CLUSTER_SETTINGS and not entry.damage:
                    _check_format(ClusterSettingsRecord.FromString(entry.value).format)
            await next_change(coordinator, CLUSTER_SETTINGS, snapshot.revision)
        except CoordinatorError as error:
            log.info("the cluster's format cannot be followed, trying again: %s", error)
            await asyncio.sleep(_RETRY_DELAY_SECONDS)


def _check_format(stored: int) -> None:
    if stored > NEWEST_FORMAT:
        raise RequestError(
            FailureCode.FAILED_PRECONDITION,
            f"this cluster is at format {stored}, and this version of MillWheel knows formats up to {NEWEST_FORMAT}",
            "run the version that the cluster's other processes run",
            reason="CLUSTER_TOO_NEW",
        )
    if stored < OLDEST_FORMAT:
        raise RequestError(
            FailureCode.FAILED_PRECONDITION,
            f"this cluster is at format {stored}, and this version of MillWheel knows formats from {OLDEST_FORMAT} on",
            "upgrade by way of an earlier version, or start another cluster (coordinator.prefix, store.keyspace)",
            reason="CLUSTER_TOO_OLD",
        )


def _check_shards(stored: int, wanted: int) -> None:
    if stored != wanted:
        raise RequestError(
            FailureCode.FAILED_PRECONDITION,
            f"cluster.authority_shards is {wanted}, but this cluster was made with {stored}: "
            "the number is settled when a cluster starts for the first time",
            f"set cluster.authority_shards = {stored}, or start another cluster (coordinator.prefix, store.keyspace)",
            reason="CLUSTER_SETTINGS_DIFFER",
        )
