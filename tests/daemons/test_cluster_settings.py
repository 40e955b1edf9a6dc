"""What a cluster settles when it starts for the first time."""

from __future__ import annotations

import pytest

from millwheel.config import ClusterSection
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.server.startup import ensure_cluster_settings
from tests.coordination.memory import MemoryCoordinator


async def test_the_shard_count_stays_and_other_settings_are_refused() -> None:
    coordinator = MemoryCoordinator()
    assert await ensure_cluster_settings(coordinator, ClusterSection(authority_shards=3)) == 3
    assert await ensure_cluster_settings(coordinator, ClusterSection(authority_shards=3)) == 3
    with pytest.raises(
        RequestError, match=r"cluster.authority_shards is 4, but this cluster was made with 3"
    ) as failure:
        await ensure_cluster_settings(coordinator, ClusterSection(authority_shards=4))
    assert failure.value.code is FailureCode.FAILED_PRECONDITION
    assert "set cluster.authority_shards = 3" in failure.value.remedy
    await coordinator.close()
