"""Which record is refused when several consumers refuse records (section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.client.injector.encoding import RecordEncoder
from millwheel.client.injector.record_keys import KeyColumn, RecordKeys, first_refused
from millwheel.client.injector.routing import ConsumerRouting, Route, StreamRouting
from millwheel.client.injector.unkeyed import WaitingSummary
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.sdk.errors import KeyExtractionError

WAITING = WaitingSummary(5, 1)
OK, NO_KEY, NO_TYPE = range(3)
views = st.lists(st.lists(st.sampled_from([OK, OK, NO_KEY, NO_TYPE]), min_size=6, max_size=6), min_size=1, max_size=3)


def column(view: list[int]) -> KeyColumn:
    """The answer of one consumer. A record without a type may still have a key."""
    first = next((at for at, one in enumerate(view) if one == NO_KEY), len(view))
    problems = {at: KeyExtractionError(str(at)) for at, one in enumerate(view) if one != OK}
    return KeyColumn([b"k"] * first, dict(problems), "why" if first < len(view) else "")


def naive(consumers: list[list[int]]) -> int | None:
    """One record after the other. A consumer that has met a record without a key is left out."""
    waiting: set[int] = set()
    for at in range(6):
        live = [number for number in range(len(consumers)) if number not in waiting]
        if live and all(consumers[number][at] != OK for number in live):
            return at
        waiting |= {number for number in live if consumers[number][at] == NO_KEY}
    return None


@given(views)
def test_a_record_that_no_remaining_consumer_takes_is_refused(consumers: list[list[int]]) -> None:
    found = first_refused([column(view) for view in consumers])
    assert (None if found is None else found[0]) == naive(consumers)


@given(views)
def test_a_strict_sender_is_refused_its_first_bad_record(consumers: list[list[int]]) -> None:
    found = first_refused([column(view) for view in consumers], strict=True)
    bad = [at for at in range(6) if any(view[at] != OK for view in consumers)]
    assert (None if found is None else found[0]) == (bad[0] if bad else None)


def test_a_consumer_whose_keys_are_unknown_refuses_nothing() -> None:
    unknown = KeyColumn([], why="no worker", unknown=True)
    assert first_refused([unknown]) is None
    assert first_refused([unknown, column([NO_TYPE] * 6)]) is not None


class Workers:
    """The answers of workers, and the requests to them: the number of records, and the reason for waiting."""

    def __init__(self, answer: wire.PrepareRecordsResponse | str) -> None:
        self.asked: list[tuple[int, WaitingSummary | None]] = []
        self._answer = answer

    async def ask(
        self, consumer: ConsumerRouting, encoded: Sequence[bytes], waiting: WaitingSummary | None
    ) -> wire.PrepareRecordsResponse | str:
        self.asked.append((len(encoded), waiting))
        return self._answer


def refusing() -> wire.PrepareRecordsResponse:
    problem = wire.RecordProblem(index=0, fault=wire.RECORD_FAULT_KEY, message="KeyError: 'user'")
    return wire.PrepareRecordsResponse(keys=[b""], problems=[problem])


async def of_waiting(
    workers: Workers, *users: str, function: str = "", waiting: WaitingSummary | None = WAITING
) -> KeyColumn:
    """The keys of records that wait; those of an empty name have no user."""
    consumer = ConsumerRouting(
        IncarnationId("c.1"),
        [Route(ALL_KEYS, "c.1.j2", "")],
        topology="t",
        computation="c",
        fields=() if function else ("user",),
        function=function,
    )
    routing = StreamRouting(1, {IncarnationId("c.1"): consumer})
    values = [msgspec.msgpack.encode({"user": user} if user else {}) for user in users]
    return await RecordKeys(RecordEncoder("in"), workers.ask).of_waiting(consumer, values, waiting, routing)


async def test_keys_that_the_injector_finds_are_asked_of_no_worker() -> None:
    workers = Workers(refusing())
    assert (await of_waiting(workers, "ann", "bob", "", "eve")).keys == [b"ann", b"bob"]
    assert workers.asked == []


@pytest.mark.guarantee("G8", section="4.2")
async def test_a_worker_is_notified_of_a_record_without_a_local_key() -> None:
    """Without that, only the injector's log would show operators that records wait."""
    workers = Workers(refusing())
    column = await of_waiting(workers, "", "bob")
    assert workers.asked == [(1, WAITING)]
    assert (column.keys, column.unknown) == ([], False)
    assert column.why == (
        "topology 't': KeyError: 'user': fix the computation's code, then `millwheel topology update`"
    )
    newer = Workers(wire.PrepareRecordsResponse(keys=[b"other"]))
    assert (await of_waiting(newer, "", "bob")).keys == [b"other"]
    gone = await of_waiting(Workers("no worker"), "", "bob")
    assert "no key in a value of dict: KeyError: 'user'" in gone.why
    assert gone.unknown


async def test_keys_by_code_are_asked_of_a_worker_with_what_waits() -> None:
    workers = Workers(wire.PrepareRecordsResponse(keys=[b"a", b"b"]))
    assert (await of_waiting(workers, "ann", "bob", function="t:initial")).keys == [b"a", b"b"]
    assert workers.asked == [(2, WAITING)]
    column = await of_waiting(Workers("no worker"), "ann", function="t:initial")
    assert (column.keys, column.why, column.unknown) == ([], "no worker", True)


async def test_without_a_worker_records_with_local_keys_go_on() -> None:
    workers = Workers(refusing())
    assert (await of_waiting(workers, "ann", "", waiting=None)).keys == [b"ann"]
    assert (await of_waiting(workers, "", waiting=None)).unknown
    assert workers.asked == []


def test_keys_of_fields_alone_are_shared_by_consumers() -> None:
    def of(**given: Any) -> ConsumerRouting:
        return ConsumerRouting(IncarnationId("c"), [Route(ALL_KEYS, "j", "a")], computation="c", **given)

    keying, checking = (RecordKeys(RecordEncoder("s"), no_worker, check=check) for check in (False, True))
    routing, fields = StreamRouting(1, {}), ("user", "city")
    assert keying.by_fields(of(fields=fields), routing) == fields
    assert not keying.by_fields(of(fields=fields, function="m:key"), routing)
    assert not keying.by_fields(of(fields=fields, log=True), routing)
    assert not checking.by_fields(of(fields=fields), routing)


async def no_worker(*_: object) -> str:
    return "no worker"
