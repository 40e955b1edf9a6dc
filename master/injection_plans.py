"""Plans for injectors and batch sources: sequencers, and cursors that never go back (section 5.2)."""

from __future__ import annotations

from typing import Final, NoReturn

from millwheel.errors import did_you_mean
from millwheel.master.change_plan import ChangePlan, PlanBuilder
from millwheel.master.messages import CommitBatch, FinishInjector, OpenInjector, RetireInjector, RetireQuery
from millwheel.master.stream_resolution import refuse_unknown_stream
from millwheel.master.successors import successor_of
from millwheel.model import catalog_keys as keys
from millwheel.model.catalog import Catalog
from millwheel.model.stream_names import owner_of
from millwheel.model.time import Timestamp
from millwheel.rpc.access.requirements import topology_of_query
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.unknown_names import UnknownNameError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import topology_pb2 as specs

__all__ = [
    "MAX_ID_BYTES",
    "commit_batch",
    "finish_injector",
    "not_finished",
    "open_injector",
    "plan_injection",
    "refuse_old_hashes",
    "refuse_retired",
    "retire_injector",
    "retire_query",
]

MAX_ID_BYTES: Final = 1024
"""The maximum length of an injector process's name or a query's id, in bytes. The authority has the same limit."""


def plan_injection(
    known: Catalog,
    request: OpenInjector | FinishInjector | RetireInjector | CommitBatch | RetireQuery,
    unusable: int,
    now: Timestamp,
) -> ChangePlan:
    """Plan a request that concerns injectors or batch sources. ``unusable``: see :class:`PlanBuilder`."""
    match request:
        case OpenInjector():
            return open_injector(known, request, unusable)
        case FinishInjector():
            return finish_injector(known, request)
        case RetireInjector():
            return retire_injector(known, request)
        case CommitBatch():
            return commit_batch(known, request)
        case RetireQuery():
            return retire_query(known, request, now)


def open_injector(known: Catalog, request: OpenInjector, unusable: int) -> ChangePlan:
    """Plan a fresh sequencer for a process that may inject. A finished process stays finished."""
    spec = known.stream(request.stream)
    if spec is None:
        refuse_unknown_stream(request.stream, known)
    _check(known, spec, request)
    refuse_old_hashes(known, request.stream, request.knows_id_stream)
    builder = PlanBuilder(known, unusable)
    before = known.injectors.get((request.stream, request.process))
    record = catalog.InjectorRecord() if before is None else successor_of(before)
    record.stream, record.process, record.sequencer = request.stream, request.process, builder.draw()
    builder.put(keys.injector_key(request.stream, request.process), record)
    # The checks must still hold when the transaction takes effect: no topology may begin to drain in between.
    for name, topology in known.live_topologies():
        if any(stream.name == request.stream for stream in topology.spec.streams):
            builder.rest_on(keys.topology_key(name))
    return builder.plan(lambda: known.injectors[request.stream, request.process])


def refuse_old_hashes(known: Catalog, stream: str, knows_id_stream: bool) -> None:
    """Refuse a client that would hash ids within the name of a fork (G1).

    Receivers of a fork know the ids of the original's records, so they would take each of these again. The client's
    version is older than forks, so it is refused by name.
    """
    if not knows_id_stream and known.id_stream(stream) != stream:
        raise _refused(
            f"topology {owner_of(stream)!r} is a fork, and this client is of a version from before forks: it would "
            f"send records of stream {stream!r} under other ids than those that they had",
            "use a client of the cluster's version",
            "CLIENT_TOO_OLD",
        )


def _check(known: Catalog, spec: specs.StreamSpec, request: OpenInjector) -> None:
    stream, process = request.stream, request.process
    if not spec.injected:
        raise _refused(
            f"stream {stream!r} takes no injections: computations produce it",
            "declare it by source() in a topology that reads it",
            "NOT_INJECTED",
        )
    if known.is_draining(stream):
        raise _refused(
            f"stream {stream!r} is draining: every topology that reads it takes no new records",
            "submit a topology that reads it before injecting more",
            "STREAM_DRAINING",
        )
    _check_length("the name of an injector process", process)
    expected = sorted(spec.expected_injectors)
    if not process or (expected and process not in expected):
        names = ", ".join(repr(one) for one in expected) or "any name but the empty one"
        raise RequestError(
            FailureCode.INVALID_ARGUMENT,
            f"stream {stream!r} does not expect an injector process {process!r}{did_you_mean(process, expected)}",
            f"expected: {names}",
            reason="INJECTOR_UNEXPECTED",
        )
    record = known.injectors.get((stream, process))
    if record is not None and record.finished:
        raise _refused(
            f"injector process {process!r} of stream {stream!r} has finished, and that is final",
            "use another process name",
            "INJECTOR_FINISHED",
        )


def _check_length(what: str, name: str) -> None:
    size = len(name.encode())
    if size > MAX_ID_BYTES:
        raise RequestError(
            FailureCode.INVALID_ARGUMENT,
            f"{what} has {size:,} bytes, and {MAX_ID_BYTES:,} are the most",
            "choose a shorter one",
            reason="NAME_TOO_LONG",
        )


def _refused(message: str, remedy: str, reason: str) -> RequestError:
    return RequestError(FailureCode.FAILED_PRECONDITION, message, remedy, reason=reason)


def finish_injector(known: Catalog, request: FinishInjector) -> ChangePlan:
    """Plan to record that a process has finished, if it still has that sequencer."""
    known.check_readable(keys.injector_key(request.stream, request.process))
    record = known.injectors.get((request.stream, request.process))
    if record is None or record.sequencer != request.sequencer or record.finished:
        return ChangePlan(
            answer=lambda: record or catalog.InjectorRecord(stream=request.stream, process=request.process)
        )
    finished = catalog.InjectorRecord()
    finished.CopyFrom(record)
    finished.finished = True
    builder = PlanBuilder(known)
    builder.put(keys.injector_key(request.stream, request.process), finished)
    return builder.plan(lambda: known.injectors[request.stream, request.process])


def retire_injector(known: Catalog, request: RetireInjector) -> ChangePlan:
    """Plan to make receivers forget a finished process. The caller has checked that this incarnation has finished.

    The record stays, and keeps the name for as long as the stream exists. Receivers refuse every record of that name.
    """
    key = keys.injector_key(request.stream, request.process)
    known.check_readable(key)
    record = known.injectors.get((request.stream, request.process))
    if record is None:
        names = sorted(process for stream, process in known.injectors if stream == request.stream)
        raise RequestError(
            FailureCode.NOT_FOUND,
            f"stream {request.stream!r} has no injector process {request.process!r}"
            f"{did_you_mean(request.process, names)}",
            "`millwheel injector list` shows those that there are",
            reason="INJECTOR_UNKNOWN",
        )
    if record.retired:
        return ChangePlan(answer=lambda: record)
    if not record.finished and record.sequencer != request.sequencer:
        raise not_finished(request.stream, request.process)
    retired = catalog.InjectorRecord()
    retired.CopyFrom(record)
    retired.finished = retired.retired = True
    builder = PlanBuilder(known)
    builder.put(key, retired)
    return builder.plan(lambda: known.injectors[request.stream, request.process])


def not_finished(stream: str, process: str) -> RequestError:
    """The error for a process that has not finished.

    Retiring it would block low watermarks, which wait for its reports.
    """
    return RequestError(
        FailureCode.FAILED_PRECONDITION,
        f"injector process {process!r} of stream {stream!r} has not finished: low watermarks wait for it",
        f"finish it first: `millwheel injector finish {stream} {process}`",
        reason="INJECTOR_NOT_FINISHED",
    )


def retire_query(known: Catalog, request: RetireQuery, now: Timestamp) -> ChangePlan:
    """Plan to make receivers forget a query. Its cursor stays for a while as a mark that all of them read."""
    key = keys.batch_key(request.query)
    known.check_readable(key)
    if request.query not in known.batches:
        remedy = "`millwheel injector queries` shows those that there are"
        names = {query: topology_of_query(query) for query in known.batches}
        raise UnknownNameError("query", request.query, names, remedy, "QUERY_UNKNOWN")
    record = catalog.BatchCursorRecord(
        query=request.query,
        committed_batch=known.batches[request.query],
        retired_at_us=known.retired_queries.get(request.query, max(1, now)),
    )
    if request.query in known.retired_queries:
        return ChangePlan(answer=lambda: record)
    builder = PlanBuilder(known)
    builder.put(key, record)
    return builder.plan(lambda: record)


def refuse_retired(query: str) -> NoReturn:
    """Raise RequestError: no batch of a retired query is accepted."""
    raise _refused(
        f"query {query!r} was retired by an operator: no process may continue it",
        "start the job again, with its own checkpoint",
        "QUERY_RETIRED",
    )


def commit_batch(known: Catalog, request: CommitBatch) -> ChangePlan:
    """Plan to advance a cursor. A batch at or below it is already committed."""
    _check_length("the id of a query", request.query)
    if not request.query or request.batch < 0:
        raise RequestError(
            FailureCode.INVALID_ARGUMENT,
            f"batch {request.batch} of query {request.query!r}: a query needs an id, and its batches count from 0",
            reason="BATCH_INVALID",
        )
    known.check_readable(keys.batch_key(request.query))
    if request.query in known.retired_queries:
        refuse_retired(request.query)
    committed = known.batches.get(request.query, -1)
    builder = PlanBuilder(known)
    if request.batch > committed:
        record = catalog.BatchCursorRecord(query=request.query, committed_batch=request.batch)
        builder.put(keys.batch_key(request.query), record)
    return builder.plan(
        lambda: catalog.BatchCursorRecord(query=request.query, committed_batch=known.batches[request.query])
    )
