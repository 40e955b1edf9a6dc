"""An error names the topology whose key function has no key for a production (section 4.2)."""

from __future__ import annotations

from typing import Any, cast

import pytest

from millwheel.model.catalog import Catalog, Consumer
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.errors import KeyExtractionError
from millwheel.worker.process.destinations import CatalogRouting

COUNT = Consumer(
    IncarnationId("count.1"), "web", "count", specs.KeySpec(function="web:key"), specs.CodeReference(),
    exactly_once=True, feedback=False, log=False,
)  # fmt: skip


class OneConsumer:
    """A catalog in which COUNT reads every stream."""

    shape = 1

    def consumers(self, stream: str) -> list[Consumer]:
        return [COUNT]


def user_code(value: Any) -> bytes:
    raise KeyError(value)


def no_key(value: Any) -> bytes:
    raise KeyExtractionError("its code is not loaded here")


@pytest.mark.parametrize("extract", [user_code, no_key])
@pytest.mark.parametrize(("stream", "other"), [("web/clicks", ""), ("shop/orders", "web")])
def test_a_failed_key_names_the_topology_that_reads(extract: Any, stream: str, other: str) -> None:
    routing = CatalogRouting(cast("Catalog", OneConsumer()), lambda consumer, stream: extract)
    with pytest.raises(KeyExtractionError) as failed:
        routing.bind(stream, bytes).route("x")
    assert failed.value.other_topology == other
