"""The cores behind a harness, for tests of the product. The harness is for users: it shows states, and no cores."""

from __future__ import annotations

from millwheel.testing import TopologyHarness
from millwheel.testing.cluster import VirtualCluster


def cluster_of(harness: TopologyHarness) -> VirtualCluster:
    return harness._cluster  # noqa: SLF001  # see above: in one place
