"""A topology in virtual time: the real interval cores and store contract, no sockets, no threads, no sleeps.

``TopologyHarness`` owns a clock that moves only by ``advance_clock``, and a memory store. Records are
fed to the topology's sources; every call runs until nothing is left to do. What user code sees, duplicates,
commits, timers, watermarks, late records, failures and their policies, is what it will see on a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from millwheel.client.injector import RecordsLeftError
from millwheel.core.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from millwheel.core.units import describe_wrong_unit, wrong_unit
from millwheel.sdk.compiled import consumers_of
from millwheel.sdk.dead_letters import dead_letter_stream
from millwheel.sdk.errors import UsageError, ValueEncodeError, did_you_mean
from millwheel.sdk.keys import encode_key
from millwheel.sdk.topology import Topology
from millwheel.store.memory import MemoryStore
from millwheel.testing.cluster import Produced, VirtualCluster
from millwheel.testing.cores import result_of
from millwheel.testing.injected import injector_of
from millwheel.testing.updating import check_update
from millwheel.worker.interval import Settings
from millwheel.worker.messages import Delivery, HookFailed

__all__ = ["Produced", "TopologyHarness"]

_START: Final = Timestamp(1_700_000_000_000_000)
"""The virtual clock's first value: 2023-11-14T22:13:20Z."""


class TopologyHarness:
    """Runs one topology. Every record fed, watermark advanced or moment passed takes its full effect in that call.

    A hook that raises makes the call in which it runs raise the same exception, with a note that names computation,
    key and record or timer. It raises nothing where the computation's ``on_failure`` deals with it: by dead letters,
    or by stopping. A value that is not of its declared type is raised whatever the policy is: no test wants it.
    ``failures`` lists what was raised in either case. The harness may be used on after that: what failed is tried
    again as time passes.

    Args:
        topology: What to run. TopologyError if it has mistakes.
        split_at: Splits every computation's keys at these points, into intervals.
        now: The virtual clock's first value.
        settings: The bounds and delays of the interval cores.
        any_timestamp: False refuses a time that is no moment from 1980 to 2200 in microseconds, and is one in seconds,
            milliseconds or nanoseconds. True takes every time. None, the default, is False unless the environment
            variable MILLWHEEL_ANY_TIMESTAMP is 1.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        split_at: Iterable[str] = (),
        now: Timestamp = _START,
        settings: Settings | None = None,
        any_timestamp: bool | None = None,
    ) -> None:
        topology.check()
        settings = settings or Settings(flush_interval=0, checkpoint_entries=20)
        if any_timestamp is not None:
            settings = replace(settings, any_timestamp=any_timestamp)
        self._any_timestamp = settings.any_timestamp
        self._cluster = VirtualCluster(int(now), split_at, settings)
        self._raised = 0
        """How many of the failures were raised, or left to their policies."""
        self._left: dict[str, RecordsLeftError] = {}
        """By stream: injected records were not ACKed when their only reader was removed."""
        self._cluster.load(topology)
        self._cluster.restart()
        self._settle()

    # What tests do.

    def send(self, stream: str, value: Any, timestamp: Timestamp, *, record_id: bytes | None = None) -> None:
        """Inject a record. With ``record_id`` (16 bytes) the same id again is a duplicate, as an injector's own are."""
        self.send_all(stream, [(value, timestamp)], record_ids=[record_id] if record_id else [])

    def send_all(
        self,
        stream: str,
        records: Iterable[tuple[Any, Timestamp]],
        *,
        record_ids: Sequence[bytes] = (),
    ) -> None:
        """Inject records, as (value, timestamp), that arrive together: they may share commits, as under load."""
        self._check_source(stream)
        cluster = self._cluster
        if cluster.declared[stream] == MAX_TIMESTAMP:
            raise UsageError(f"stream {stream!r} has finished, so no record of it comes any more: send before finish()")
        codec = cluster.codecs[stream]
        consumers = [(cluster.incarnations[name], extract) for name, extract in consumers_of(self.topology, stream)]
        # All values and keys first: records of which one is wrong are not sent at all.
        rows = [
            (value, codec.verify(value), timestamp, [(consumer, extract(value)) for consumer, extract in consumers])
            for value, timestamp in records
        ]
        for _, _, timestamp, _ in rows:
            self._check_time(timestamp, f"a record's timestamp of stream {stream!r}")
        batches: dict[str, Delivery] = {}
        for index, (value, encoded, timestamp, targets) in enumerate(rows):
            position = cluster.injected.next_position(stream)
            for consumer, key in targets:
                journal = cluster.locate(consumer, key)
                if journal not in batches:
                    watermark, opaque = cluster.watermarks[injector_of(stream)], bool(record_ids)
                    batches[journal] = cluster.injected.open(consumer, journal, stream, position, watermark, opaque)
                delivery = batches[journal]
                delivery.keys.append(key)
                delivery.values.append(encoded)
                delivery.timestamps.append(timestamp)
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
        """Promise, as an injector does, that no later record is below ``watermark``: of one source, or of all.

        Less than before says nothing new."""
        self._check_time(watermark, "the watermark" if stream is None else f"the watermark of stream {stream!r}")
        for name in [stream] if stream is not None else list(self._cluster.declared):
            self._check_source(name)
            self._cluster.declared[name] = max(self._cluster.declared[name], watermark)
            self._cluster.publish(name)
        self._settle()

    def finish(self) -> None:
        """The sources have ended: the low watermark goes to plus infinity.

        Raises:
            Exception: What a hook raised for a key that still waits for its next attempt, and that no policy gives up.
        """
        self.advance(MAX_TIMESTAMP)
        count, failure = self._cluster.waiting()
        if failure is not None:
            error = _error_of(failure)
            keys = "1 key waits" if count == 1 else f"{count} keys wait"
            error.add_note(f"{keys} for the next attempt: after advance_clock(...), finish() may be called again")
            raise error

    def advance_clock(self, by: Duration) -> None:
        """Let wall time pass: wall timers, retries and other alarms fire at their own moments on the way."""
        if not isinstance(by, int) or by < 0:
            raise UsageError(f"the clock goes forward, by a Duration (integer microseconds) from 0 on, not by {by!r}")
        self._cluster.driver.pass_time(by)
        self._settle()

    def crash(self) -> None:
        """Lose all memory, and start again from what the store holds, as after ``kill -9``."""
        self._cluster.restart()
        self._settle()

    def update(self, topology: Topology) -> None:
        """Go on with a new version of the topology, as ``millwheel topology update`` with new code does (section 4.1).

        Computations that stay keep state, timers, pending productions and watermark under their names. A state of an
        earlier ``state_version`` is migrated when it is next read. A computation that is new gets what is produced from
        now on. What a removed one had produced is delivered, and its state is given up.

        Raises:
            RecordsLeftError: At the next call for a source whose only reader was removed with records un-ACKed.
            TopologyError: If the new version has mistakes, or may not follow on the present one; nothing changes then.
            UsageError: If it has another name.
        """
        check_update(self.topology, topology)
        before, plan = self._cluster.plan, topology.plan()
        for name in [name for name in before.computations if name not in plan.computations]:
            for stream in self._cluster.remove(name):
                if not any(reader in plan.computations for reader in before.streams[stream].consumers):
                    self._left[stream] = RecordsLeftError(stream, name)
        self._cluster.load(topology)
        self._cluster.restart()
        self._settle()

    def close(self) -> None:
        """Release the event loop that asynchronous hooks ran on."""
        self._cluster.driver.close()

    # What tests read.

    @property
    def topology(self) -> Topology:
        """The present version."""
        return self._cluster.topology

    @property
    def failures(self) -> list[str]:
        """What user code raised, as an operator would read it."""
        return [one.message for one in self._cluster.failures]

    @property
    def now(self) -> Timestamp:
        """The virtual clock."""
        return Timestamp(self._cluster.driver.now)

    @property
    def store(self) -> MemoryStore:
        """What outlives a crash."""
        return self._cluster.driver.store

    def produced(self, stream: str) -> list[Produced]:
        """The records produced to ``stream`` so far, each once, in the order of their delivery.

        Of a source, the injected records that no computation reads. UsageError if there is no such stream.
        """
        known = [*self._cluster.codecs, dead_letter_stream(self.topology.name)]
        if stream not in known:
            hint = did_you_mean(stream, known)
            raise UsageError(f"topology {self.topology.name!r} has no stream {stream!r}{hint}")
        return list(self._cluster.produced.get(stream, ()))

    def values(self, stream: str) -> list[Any]:
        """The values of ``produced``."""
        return [record.value for record in self.produced(stream)]

    def state(self, computation: str, key: str | int) -> Any:
        """A key's state as the last commit left it; None if it has none."""
        data = encode_key(key)
        core = self._cluster.core_of(self._known(computation), data)
        cell = core.state.cells.get(data)
        encoded = cell.encoded if cell is not None else self._row(core.state.config.computation, data)
        return core.state.program.state.decode(encoded) if encoded else None

    def timers(self, computation: str, key: str | int) -> dict[tuple[str, bool], Timestamp]:
        """A key's timers: (tag, wall) → time."""
        data = encode_key(key)
        tables = self._cluster.core_of(self._known(computation), data).state.timers
        return {
            (tag, wall): Timestamp(setting.at)
            for wall, table in tables.items()
            for tag, setting in table.of_key(data).items()
        }

    def watermark(self, computation: str) -> Timestamp:
        """The computation's low watermark (section 4.5): what its consumers see."""
        incarnation = self._cluster.incarnations[self._known(computation)]
        return Timestamp(self._cluster.watermarks.get(incarnation, MIN_TIMESTAMP))

    def counts(self, computation: str) -> Mapping[str, int]:
        """Totals: records, duplicates, late, dead_letters."""
        totals = {"records": 0, "duplicates": 0, "late": 0, "dead_letters": 0}
        for core in self._cluster.cores_of(self._known(computation)):
            for name in totals:
                totals[name] += getattr(core.state.counts, name)
        return totals

    def stopped(self, computation: str) -> str:
        """Why the computation stands still by its failure policy; empty while it runs."""
        return next((core.stopped for core in self._cluster.cores_of(self._known(computation)) if core.stopped), "")

    def _settle(self) -> None:
        """Run until nothing is left to do, and raise what no policy deals with."""
        self._cluster.run()
        failures = self._cluster.failures[self._raised :]
        self._raised += len(failures)
        unresolved = [one for one in failures if one.endless or isinstance(one.error, ValueEncodeError)]
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
                "only what is declared by source(...) or external(...) is fed by a test"
            )
        if stream in self._left:
            raise self._left.pop(stream)

    def _check_time(self, time: object, what: str) -> None:
        """UsageError for a time that is no integer, or that only another unit than microseconds explains."""
        if not isinstance(time, int) or isinstance(time, bool):
            raise UsageError(f"{what} is a Timestamp (integer microseconds), not {type(time).__name__}: {time!r}")
        unit = "" if self._any_timestamp else wrong_unit(time, self.now)
        if unit:
            raise UsageError(
                f"{what}: {describe_wrong_unit(time, unit)}. If the time is meant, write "
                "TopologyHarness(..., any_timestamp=True)"
            )

    def _row(self, incarnation: str, key: bytes) -> bytes:
        row = result_of(self.store.read_states(incarnation, [key]))[0]
        return row.blob if row is not None else b""


def _error_of(failure: HookFailed) -> Exception:
    """What a hook raised, as an exception for a test, with a note that says where."""
    error = failure.error
    if not isinstance(error, Exception):
        # What ends a program or a task, such as SystemExit, is a failure of the hook and not of the test.
        error = RuntimeError(f"a hook raised {type(error).__name__}: {error}")
        error.__cause__ = failure.error
    if failure.message not in getattr(error, "__notes__", ()):
        error.add_note(failure.message)
    return error
