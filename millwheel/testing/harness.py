"""Runs a topology in virtual time, with the real interval cores and store contract.

It uses no sockets, threads or sleeps. ``TopologyHarness`` has a memory store, and a clock that only ``advance_clock``
moves. Tests feed records to the topology's sources. Every call runs until nothing is left to do. User code behaves as
on a cluster: duplicates, commits, timers, watermarks, late records, failures and their policies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from millwheel.client.injector import RecordsLeftError
from millwheel.model.incarnation import IncarnationId, injector_group
from millwheel.model.limits import MAX_VALUE_BYTES
from millwheel.model.page_keys import page_key
from millwheel.model.stream_names import DEAD_LETTERS
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, TimeDomain, Timestamp
from millwheel.model.units import describe_wrong_unit, wrong_unit
from millwheel.sdk.compiled import consumers_of
from millwheel.sdk.error_texts import error_message
from millwheel.sdk.errors import TooLargeError, UsageError, ValueEncodeError, did_you_mean
from millwheel.sdk.growing.pages import ReadPages
from millwheel.sdk.keys import encode_key
from millwheel.sdk.scope import PAGES_TAG
from millwheel.sdk.topology import TopologyGraph
from millwheel.store.memory import MemoryStore
from millwheel.testing.captured import batches_of, records_of
from millwheel.testing.cluster import Produced, VirtualCluster
from millwheel.testing.cores import HOOK_TIMEOUT_SECONDS, HookTimeoutError
from millwheel.testing.store_effects import result_of
from millwheel.testing.updating import check_update
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.interval.entry import TimerRow, decode_part
from millwheel.worker.interval.shown_panes import pane_timers, panes_of, with_panes
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.journal import CommitCounts
from millwheel.worker.messages import Delivery, HookFailed

__all__ = ["Produced", "TopologyHarness"]

_START: Final = Timestamp(1_700_000_000_000_000)
"""The first value of the virtual clock: 2023-11-14T22:13:20Z, in microseconds."""

_ALWAYS_RAISED: Final = (ValueEncodeError, HookTimeoutError)
"""Failures that are raised under every policy, because no test expects them."""


class TopologyHarness:
    """Runs one topology. Each call returns after its records, watermarks or time have taken their full effect.

    If a hook raises, the call in which it runs raises the same exception. A note names the computation, the key, and
    the record or timer. The call does not raise if ``on_failure`` handles the failure with dead letters or by stopping.
    Two kinds of failures are always raised: a value that is not of its declared type, and the HookTimeoutError of an
    asynchronous hook.

    ``failures`` lists the failures in all cases. The harness is usable after a failure. Failed hooks are retried as
    virtual time passes.

    It has many methods: each is a step that a user's test takes, or a question that it asks.

    Args:
        topology: The topology to run.
        split_at: Keys at which each computation is split into intervals.
        now: The first value of the virtual clock, in microseconds.
        settings: The bounds and delays of the interval cores.
        any_timestamp: Whether to accept every time. False rejects a time that is outside 1980 to 2200 in microseconds,
            but inside that range in seconds, milliseconds or nanoseconds. A connector's record cannot be read if it is
            before 1980, either, or more than a year after ``now``. None, the default, is True if the environment
            variable MILLWHEEL_ANY_TIMESTAMP is 1. Otherwise it is False, except that records may be far ahead: ``now``
            need not be the time of the test's records.
        fed: Streams that :meth:`send` feeds in place of their sources, which do not run.
        captured: Sinks that do not run: no connection is opened. :meth:`values` and :meth:`produced` have what the
            writer of such a sink would get, by its name. Their records are batched as usual, so
            :meth:`advance_clock` passes the delay of a batch.
        hook_timeout_seconds: The limit for an asynchronous hook, in seconds of real time. A hook that exceeds it is
            cancelled and fails with a HookTimeoutError. A hook that never awaits anything cannot be stopped.

    Raises:
        TopologyError: The topology has mistakes.
        UsageError: ``hook_timeout_seconds`` is not above 0. Or no source reads a stream of ``fed``, or a
            name of ``captured`` is no sink.
    """

    def __init__(
        self,
        topology: TopologyGraph,
        *,
        split_at: Iterable[str] = (),
        now: Timestamp = _START,
        settings: IntervalSettings | None = None,
        any_timestamp: bool | None = None,
        fed: Iterable[str] = (),
        captured: Iterable[str] = (),
        hook_timeout_seconds: float = HOOK_TIMEOUT_SECONDS,
    ) -> None:
        topology.check()
        if not hook_timeout_seconds > 0:
            raise UsageError(f"hook_timeout_seconds is a number of seconds above 0, not {hook_timeout_seconds!r}")
        settings = settings or IntervalSettings(flush_interval=0, checkpoint_entries=20)
        settings = replace(settings, real_clock=any_timestamp is False)
        if any_timestamp is not None:
            settings = replace(settings, any_timestamp=any_timestamp)
        self._any_timestamp = settings.any_timestamp
        self._cluster = VirtualCluster(int(now), split_at, settings, hook_timeout_seconds, fed, captured)
        self._raised = 0
        """The number of failures that were already raised, or left to their policies."""
        self._left: dict[str, RecordsLeftError] = {}
        """By stream: the error for injected records that had no ACK when their only consumer was removed."""
        self._versions = [topology]
        """All versions that ran: each has its own readers and writers of connectors."""
        self._cluster.load(topology)
        try:
            self._cluster.restart()
            self._settle()
        except BaseException:
            self.close()  # a source reads from the beginning, and nothing else could close what it has opened
            raise

    def __enter__(self) -> TopologyHarness:
        """The harness, which is closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    # Actions of a test.

    def send(self, stream: str, value: Any, timestamp: Timestamp, *, record_id: bytes | None = None) -> None:
        """Inject one record.

        Args:
            stream: A source, or an external stream.
            value: A value of the stream's type.
            timestamp: Microseconds since the epoch.
            record_id: 16 bytes. A second record with the same id is a duplicate, as on a cluster.

        Raises:
            Exception: As by :meth:`send_all`.
        """
        self.send_all(stream, [(value, timestamp)], record_ids=[record_id] if record_id else [])

    def send_all(
        self,
        stream: str,
        records: Iterable[tuple[Any, Timestamp]],
        *,
        record_ids: Sequence[bytes] = (),
    ) -> None:
        """Inject several records that arrive together. They may share commits, as under load.

        If one record is wrong, none is sent.

        Args:
            stream: A source, or an external stream.
            records: Pairs of value and timestamp (microseconds since the epoch).
            record_ids: An id of 16 bytes for each record. Empty: the harness numbers the records.

        Raises:
            UsageError: The stream is no source or has finished, or a timestamp is not valid.
            ValueEncodeError: A value is not of the stream's type.
            TooLargeError: A record is larger than an injector accepts.
            Exception: An exception of a hook that this call ran.
        """
        self._check_source(stream)
        cluster = self._cluster
        if cluster.declared[stream] == MAX_TIMESTAMP:
            raise UsageError(f"stream {stream!r} has finished, so no record of it comes any more: send before finish()")
        codec = cluster.codecs[stream]
        consumers = [(cluster.incarnations[name], extract) for name, extract in consumers_of(self.topology, stream)]
        # Encode all values and keys first. If one record is wrong, none is sent.
        rows = [
            (value, codec.verify(value), timestamp, [(consumer, extract(value)) for consumer, extract in consumers])
            for value, timestamp in records
        ]
        for _, encoded, timestamp, _ in rows:
            self._check_time(timestamp, f"a record's timestamp of stream {stream!r}")
            if len(encoded) > MAX_VALUE_BYTES:
                raise TooLargeError(f"a record of stream {stream!r}", len(encoded), MAX_VALUE_BYTES)
        batches: dict[str, Delivery] = {}
        for index, (value, encoded, timestamp, targets) in enumerate(rows):
            position = cluster.injected.next_position(stream)
            for consumer, key in targets:
                journal = cluster.locate(consumer, key)
                if journal not in batches:
                    watermark, opaque = cluster.watermarks[injector_group(stream)], bool(record_ids)
                    batches[journal] = cluster.injected.open(consumer, journal, stream, position, watermark, opaque)
                delivery = batches[journal]
                columns: Any = delivery
                columns.keys.append(key)
                columns.values.append(encoded)
                columns.timestamps.append(timestamp)
                ids: Any = delivery.ids
                if record_ids:
                    ids.ids.append(record_ids[index])
                else:
                    ids.positions.append(position)
            if not targets:
                cluster.produced.setdefault(stream, []).append(Produced(value, timestamp))
        for journal, delivery in batches.items():
            cluster.driver.post(journal, cluster.injected.keep(delivery))
        self._settle()

    def advance(self, watermark: Timestamp, stream: str | None = None) -> None:
        """Declare that no later record is below ``watermark``, as an injector does.

        A watermark below an earlier one has no effect.

        Args:
            watermark: Microseconds since the epoch.
            stream: The source. None: all sources.

        Raises:
            UsageError: The stream is no source, or the watermark is not valid.
            Exception: An exception of a hook that this call ran.
        """
        self._check_time(watermark, "the watermark" if stream is None else f"the watermark of stream {stream!r}")
        for name in [stream] if stream is not None else list(self._cluster.declared):
            self._check_source(name)
            self._cluster.declared[name] = max(self._cluster.declared[name], watermark)
            self._cluster.publish(name)
        self._settle()

    def finish(self) -> None:
        """End all sources: their low watermark becomes plus infinity.

        Raises:
            Exception: The exception of a hook whose key waits for a retry that no policy ends.
        """
        self.advance(MAX_TIMESTAMP)
        count, failure = self._cluster.waiting()
        if failure is not None:
            error = _error_of(failure)
            keys = "1 key waits" if count == 1 else f"{count} keys wait"
            error.add_note(f"{keys} for the next attempt: after advance_clock(...), finish() may be called again")
            raise error

    def advance_clock(self, by: Duration) -> None:
        """Advance wall time. Processing-time timers, retries and other alarms fire at their own moments.

        Args:
            by: Microseconds, 0 or more.

        Raises:
            UsageError: ``by`` is negative or no integer.
            Exception: An exception of a hook that this call ran.
        """
        if not isinstance(by, int) or by < 0:
            raise UsageError(f"the clock goes forward, by a Duration (integer microseconds) from 0 on, not by {by!r}")
        self._cluster.driver.pass_time(by)
        self._settle()

    def crash(self) -> None:
        """Lose all memory, and start again from the store, as after ``kill -9``."""
        self._cluster.restart()
        self._settle()

    def update(self, topology: TopologyGraph) -> None:
        """Replace the topology by a new version, as ``millwheel topology update`` with new code does (section 4.1).

        A computation that stays keeps state, timers, pending productions and watermark under its name. A state of an
        earlier ``state_version`` is migrated when it is next read. So is an element of a growing state whose field has
        another function now (``millwheel.migrated``). A new computation receives records from now on. The productions
        of a removed computation are delivered, and its state is deleted.

        Args:
            topology: The new version, with the same name.

        Raises:
            RecordsLeftError: At the next call for a source whose only consumer was removed before it had ACKed all
                records.
            TopologyError: The new version has mistakes, or may not replace the present one. Nothing changes then.
            UsageError: The new version has another name.
        """
        check_update(self.topology, topology)
        before, plan = self._cluster.plan, topology.plan()
        gone = [name for name in self._cluster.incarnations if name not in plan.computations]
        for name in gone:
            for stream in self._cluster.remove(name):
                if not any(reader in plan.computations for reader in before.streams[stream].consumers):
                    self._left[stream] = RecordsLeftError(stream, name)
        self._versions.append(topology)
        self._cluster.load(topology)
        self._cluster.restart()
        self._settle()

    def close(self) -> None:
        """Close the readers and writers of connectors, and the event loop of asynchronous hooks."""
        plans = [topology.plan() for topology in self._versions]
        run = [one.computation for plan in plans for one in plan.computations.values()]
        self._cluster.driver.close(*(one._close for one in run if one is not None))

    # Results for a test.

    @property
    def topology(self) -> TopologyGraph:
        """The present version of the topology."""
        return self._cluster.topology

    @property
    def failures(self) -> list[str]:
        """The messages of all failures of user code, as an operator would read them."""
        return [one.message for one in self._cluster.failures]

    @property
    def now(self) -> Timestamp:
        """The time of the virtual clock, in microseconds since the epoch."""
        return Timestamp(self._cluster.driver.now)

    @property
    def store(self) -> MemoryStore:
        """The store, whose contents survive a crash."""
        return self._cluster.driver.store

    def produced(self, stream: str) -> list[Produced]:
        """The records produced to a stream so far, each once, in the order of their delivery.

        Args:
            stream: The stream, or a captured sink. For a source, the result has the injected records if no computation
                consumes them.

        Raises:
            UsageError: There is no such stream.
        """
        cluster = self._cluster
        if stream in cluster.captured:
            batches = [one.value for one in cluster.produced.get(batches_of(stream), ())]
            return [Produced(value, Timestamp(at)) for value, at in records_of(cluster.plan, stream, batches)]
        known = [*cluster.codecs, *cluster.captured, DEAD_LETTERS]
        if stream not in known:
            hint = did_you_mean(stream, known)
            raise UsageError(f"topology {self.topology.name!r} has no stream {stream!r}{hint}")
        return list(cluster.produced.get(stream, ()))

    def values(self, stream: str) -> list[Any]:
        """The values of the records that ``produced`` returns."""
        return [record.value for record in self.produced(stream)]

    def state(self, computation: str, key: str | int) -> Any:
        """A key's state after the last commit.

        Args:
            computation: The computation's name.
            key: The key.

        Returns:
            The decoded state; None if the key has none. The collections of a growing state read what is stored; changes
            of the returned state have no effect.

        Raises:
            UsageError: There is no such computation.
        """
        data = encode_key(key)
        core = self._cluster.core_of(self._known(computation), data)
        encoded = with_panes(core.state, self._encoded(core.state, data), panes_of(core.state.panes, data))
        if not encoded:
            return None
        state = core.state.program.state.decode(encoded)
        if core.state.program.growing:
            state._pages.source = ReadPages(lambda number: self._encoded(core.state, page_key(data, number)))
        return state

    def timers(self, computation: str, key: str | int) -> dict[tuple[str, TimeDomain], Timestamp]:
        """A key's timers.

        Args:
            computation: The computation's name.
            key: The key.

        Returns:
            By (tag, domain): the time of the timer, in microseconds since the epoch.

        Raises:
            UsageError: There is no such computation.
        """
        data = encode_key(key)
        state = self._cluster.core_of(self._known(computation), data).state
        found = {(row[2], TimeDomain(row[1])): Timestamp(row[3]) for row in self._spilled_timers(state, data)}
        for domain, table in state.timers.tables.items():
            found |= {(tag, domain): Timestamp(setting.at) for tag, setting in table.of_key(data).items()}
        for tag, setting in pane_timers(state.panes, data).items():
            found[tag, TimeDomain.EVENT_TIME] = Timestamp(setting.at)
        found.pop((PAGES_TAG, TimeDomain.PROCESSING_TIME), None)
        return found

    def watermark(self, computation: str) -> Timestamp:
        """The computation's low watermark (section 4.5), which its consumers see. Microseconds since the epoch."""
        incarnation = self._cluster.incarnations[self._known(computation)]
        return Timestamp(self._cluster.watermarks.get(incarnation, MIN_TIMESTAMP))

    def counts(self, computation: str) -> Mapping[str, int]:
        """The computation's totals: ``records``, ``duplicates``, ``late``, ``dead_letters`` and ``dropped``."""
        totals = CommitCounts()
        for core in self._cluster.cores_of(self._known(computation)):
            totals.add(*core.state.counts.row)
        return asdict(totals)

    def stopped(self, computation: str) -> str:
        """Why the computation's failure policy stopped it; empty while it runs."""
        return next((core.stopped for core in self._cluster.cores_of(self._known(computation)) if core.stopped), "")

    def _settle(self) -> None:
        """Run until nothing is left to do. Then raise the failures that no policy handles."""
        self._cluster.run()
        self._cluster.driver.end_call()
        failures = self._cluster.failures[self._raised :]
        self._raised += len(failures)
        unresolved = [one for one in failures if one.endless or isinstance(one.error, _ALWAYS_RAISED)]
        if not unresolved:
            return
        first, *others = unresolved
        error = _error_of(first)
        if others:
            error.add_note(f"{len(others)} more failures in this call: TopologyHarness.failures lists them")
        raise error

    def _known(self, computation: str) -> str:
        known = list(self._cluster.incarnations)
        if computation not in known:
            hint = did_you_mean(computation, known)
            raise UsageError(f"topology {self.topology.name!r} has no computation {computation!r}{hint}")
        return computation

    def _check_source(self, stream: str) -> None:
        known = list(self._cluster.declared)
        if stream not in known:
            raise UsageError(
                f"stream {stream!r} is no source of topology {self.topology.name!r}{did_you_mean(stream, known)}: "
                "only what is declared by source(...) or external(...) is fed by a test, and by "
                "TopologyHarness(..., fed=[...]) what a source would read"
            )
        if stream in self._left:
            raise self._left.pop(stream)

    def _check_time(self, time: object, what: str) -> None:
        """Raise UsageError for a time that is no integer, or that is probably in another unit than microseconds."""
        if not isinstance(time, int) or isinstance(time, bool):
            raise UsageError(f"{what} is a Timestamp (integer microseconds), not {type(time).__name__}: {time!r}")
        unit = "" if self._any_timestamp else wrong_unit(time, self.now)
        if unit:
            raise UsageError(
                f"{what}: {describe_wrong_unit(time, unit)}. If the time is meant, write "
                "TopologyHarness(..., any_timestamp=True)"
            )

    def _spilled_timers(self, state: IntervalState, key: bytes) -> list[TimerRow]:
        """The key's timers that are only in the store."""
        journal, spilled = state.config.journal, state.timers.spilled
        blobs = result_of(self.store.read_parts(journal, spilled.parts_of(key)))
        rows = [row for blob in blobs for row in decode_part(blob, list[TimerRow], f"journal {journal}")]
        return spilled.current_rows(row for row in rows if row[0] == key)

    def _encoded(self, state: IntervalState, key: bytes) -> bytes:
        """The state of a key, or a page, after the last commit."""
        cell = state.cells.peek(key)
        if cell is not None:
            return cell.encoded
        row = result_of(self.store.read_states(IncarnationId(state.config.incarnation), [key]))[0]
        return row.blob if row is not None else b""


def _error_of(failure: HookFailed) -> Exception:
    """The exception of a hook, for the test, with a note about the place."""
    error = failure.error
    if not isinstance(error, Exception):
        # An exception such as SystemExit would end the test run. Here it is only a failure of the hook.
        error = RuntimeError(f"a hook raised {error_message(error)}")
        error.__cause__ = failure.error
    if failure.message not in getattr(error, "__notes__", ()):
        error.add_note(failure.message)
    return error
