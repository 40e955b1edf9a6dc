"""Injectors state complete positions where all receivers understand them (docs/upgrading.md)."""

from __future__ import annotations

import pytest

from millwheel.master.services.routing import routing_of
from millwheel.master.services.routing_diff import RoutingDiff
from millwheel.model.catalog_keys import CLUSTER_SETTINGS
from millwheel.model.formats import POSITION_RANGES
from millwheel.model.key_values import KeyChange
from millwheel.rpc.v1 import catalog_pb2 as catalog
from tests.master.test_forks import started


@pytest.mark.guarantee("G12", section="6.1.1")
@pytest.mark.parametrize("number", [POSITION_RANGES - 1, POSITION_RANGES])
def test_ranges_wait_for_their_format(number: int) -> None:
    """An earlier version could not take over an interval whose journal has ranges."""
    cluster, _ = started(number)
    assert routing_of(cluster.catalog(), "zeitgeist/queries").position_ranges == (number == POSITION_RANGES)


def test_injectors_that_stay_hear_that_the_format_has_risen() -> None:
    """A master looks whether the routing has news when the shape has changed. Nothing else may change for weeks."""
    cluster, _ = started(POSITION_RANGES - 1)
    known, sent = cluster.catalog(), RoutingDiff()
    shapes, news = list[int](), list[list[bool]]()
    for number in (POSITION_RANGES - 1, POSITION_RANGES - 1, POSITION_RANGES):
        settings = catalog.ClusterSettingsRecord(authority_shards=1, format=number)
        known.apply([KeyChange(CLUSTER_SETTINGS, settings.SerializeToString(), known.revision + 1)])
        shapes.append(known.shape_version)
        news.append([one.position_ranges for one in sent.news(known, routing_of(known, "zeitgeist/queries"))])
    assert shapes[0] == shapes[1] < shapes[2]
    assert news == [[False], [], [True]]
