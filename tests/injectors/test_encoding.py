"""An injector uses the key extractor of the topology object, as long as the cluster has the same key (4.2)."""

from __future__ import annotations

import msgspec
import pytest

import millwheel as mw
from millwheel.client.injector.encoding import RecordEncoder
from millwheel.client.injector.routing import ConsumerRouting, Route
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.keys import KeyExtractor


class Visit(msgspec.Struct):
    page: str
    user: str


class Count(mw.Computation[Visit, int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[Visit]) -> None:
        ctx.state += 1


def topology(key: KeyExtractor) -> mw.Topology:
    made = mw.Topology("site")
    made.source("visits", Visit)
    made.add(Count, name="count", inputs={"visits": key})
    return made


def routed(*fields: str, function: str = "") -> ConsumerRouting:
    routes = [Route(ALL_KEYS, "count.1.j2", "")]
    return ConsumerRouting(
        IncarnationId("count.1"), routes, topology="site", computation="count", fields=fields, function=function
    )


def keys(encoder: RecordEncoder, consumer: ConsumerRouting) -> list[bytes]:
    visits = [Visit("home", "ann")]
    return encoder.keys(consumer, visits, [b""], None, specs.VALUE_FORMAT_MSGPACK)


@pytest.mark.paper(section="4.1")
def test_an_update_that_keys_by_another_field_reaches_injectors() -> None:
    encoder = RecordEncoder("visits", topology(mw.key("page")))
    assert keys(encoder, routed("page")) == [b"home"]
    assert keys(encoder, routed("user")) == [b"ann"]


@pytest.mark.paper(section="4.1")
def test_an_update_keying_by_a_field_ends_the_use_of_a_function() -> None:
    encoder = RecordEncoder("visits", topology(mw.key(lambda visit: visit.page)))
    assert keys(encoder, routed(function="site:by_page")) == [b"home"]
    assert keys(encoder, routed("user")) == [b"ann"]


@pytest.mark.paper(section="4.1")
def test_a_key_that_became_a_function_is_a_workers_to_extract() -> None:
    encoder = RecordEncoder("visits", topology(mw.key("page")))
    assert encoder.keys_locally(routed("page"))
    assert not encoder.keys_locally(routed(function="site:by_user"))


@pytest.mark.guarantee("G1", section="4.2")
def test_single_records_get_the_key_of_columns_by_no_step() -> None:
    """Where steps drop records, only the function says which ones have that key."""
    known, unknown = RecordEncoder("visits", topology(mw.key(lambda visit: visit.page))), RecordEncoder("visits")
    for rows_by_function in (False, True):
        consumer = ConsumerRouting(
            IncarnationId("count.1"),
            [Route(ALL_KEYS, "count.1.j2", "")],
            topology="site",
            computation="count",
            function="site:by_page",
            same=b"0",
            rows_by_function=rows_by_function,
        )
        assert consumer.same == b"0"
        assert keys(known, consumer) == [b"home" if rows_by_function else b"0"]
        assert unknown.keys_locally(consumer) is not rows_by_function
        assert known.extractor(consumer, Visit)(Visit("home", "ann")) == keys(known, consumer)[0]
