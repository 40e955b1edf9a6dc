"""An error names the topology whose key function has no key for a production (section 4.2)."""

from __future__ import annotations

from typing import Any, cast

import pytest

from millwheel.model.catalog import Catalog, Consumer
from millwheel.model.formats import RESULT_COLUMNS
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.effects import ProducedRead
from millwheel.sdk.errors import KeyExtractionError
from millwheel.worker.process.destinations import CatalogRouting

COUNT = Consumer(
    IncarnationId("count.1"), "web", "count", specs.KeySpec(function="web:key"), specs.CodeReference(),
    exactly_once=True, feedback=False, log=False,
)  # fmt: skip


LOG = Consumer(
    IncarnationId("log.2"), "web", "", specs.KeySpec(), specs.CodeReference(), exactly_once=True, feedback=False,
    log=True,
)  # fmt: skip


TABLE = Consumer(
    IncarnationId("table.3"), "web", "table-batches", specs.KeySpec(function="a sink of one shard", same_key="0"),
    specs.CodeReference(), exactly_once=True, feedback=False, log=False,
)  # fmt: skip


class OneConsumer:
    """A catalog in which COUNT reads every stream, until a test changes it."""

    shape = 1
    format = RESULT_COLUMNS

    def __init__(self) -> None:
        self.found = [COUNT]

    def consumers(self, stream: str) -> list[Consumer]:
        return self.found


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


@pytest.mark.guarantee("G1", section="4.2")
def test_many_values_have_the_targets_that_each_has_now() -> None:
    catalog = OneConsumer()
    routing = CatalogRouting(cast("Catalog", catalog), lambda consumer, stream: str.encode)
    binding = routing.bind("web/clicks", bytes)
    for found in ([COUNT], [COUNT, LOG], [LOG], []):
        catalog.found = found
        routing.refresh()
        assert binding.route_all is not None
        read = ProducedRead("web/clicks", [b"1", b"2"], [1, 2], binding.route_all(["x", "y"]))
        assert [one.targets for one in read.productions()] == [binding.route("x"), binding.route("y")]


def stopping(value: str) -> bytes:
    return next(iter(() if value == "y" else (b"x",)))


def test_keys_that_stop_an_iteration_are_an_error_of_many_values() -> None:
    routing = CatalogRouting(cast("Catalog", OneConsumer()), lambda consumer, stream: stopping)
    route_all = routing.bind("web/clicks", bytes).route_all
    assert route_all is not None
    with pytest.raises(ValueError, match="StopIteration"):
        route_all(["x", "y", "z"])


def by_field(*fields: str, name: str = "sum") -> Consumer:
    """A consumer whose key is a field, or several."""
    key = specs.KeySpec(fields=fields)
    return Consumer(
        IncarnationId(f"{name}.1"), "web", name, key, specs.CodeReference(), exactly_once=True, feedback=False,
        log=False,
    )  # fmt: skip


@pytest.mark.guarantee("G1", section="4.2")
def test_tables_go_to_the_consumers_of_now() -> None:
    catalog = OneConsumer()
    routing = CatalogRouting(cast("Catalog", catalog), lambda consumer, stream: str.encode)
    binding, rows = routing.bind("web/clicks", bytes, tables=True), routing.bind("web/clicks", bytes)
    several = [by_field("item"), LOG]
    cases: list[tuple[list[Consumer], Any]] = [
        ([COUNT], None),
        (several, (("sum.1", "item"), ("log.2", b""))),
        ([*several, TABLE], (("sum.1", "item"), ("log.2", b""), ("table.3", b"0"))),
        ([*several, COUNT], None),
        ([by_field("item", "shop")], None),
        ([by_field("user.name")], None),
        ([], ()),
    ]
    for found, expected in cases:
        catalog.found = found
        routing.refresh()
        assert (binding.key_columns, rows.key_columns) == (expected, None)
    catalog.found, catalog.format = several, RESULT_COLUMNS - 1
    routing.refresh()
    assert binding.key_columns is None, "the other workers do not know such entries"
