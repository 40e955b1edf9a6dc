"""The injector: sends records into the system from an asyncio program (section 5.2). It drives the injector's core.

    async with Injector("queries", process="reader-1", address="127.0.0.1:7433") as injector:
        await injector.send(Query("britney spears"), timestamp=now)
        await injector.advance(now - seconds(5))

The injector sends every record to every consumer of its stream until the consumer ACKs it. The process or its successor
may send a record again. :mod:`millwheel.client.injector.ids` defines when two records count as the same one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final

from millwheel.client.control import DEFAULT_ADDRESS
from millwheel.client.injector.admission import RecordAdmission
from millwheel.client.injector.encoding import GivenKeys
from millwheel.client.injector.errors import NotAckedError
from millwheel.client.injector.ids import BatchOf, RecordIds, UserId
from millwheel.client.injector.intake import RecordIntake
from millwheel.client.injector.likelihood import TimeCheck
from millwheel.client.injector.messages import EndDeclared, IdleDeclared, WatermarkDeclared
from millwheel.client.injector.session import InjectorSession
from millwheel.client.injector.settings import InjectorSettings
from millwheel.client.injector.stalls import StallMonitor
from millwheel.client.injector.unacked import unacked_records
from millwheel.model.stream_names import full_name, is_valid
from millwheel.model.time import Timestamp
from millwheel.rpc.clock import wall_now
from millwheel.sdk.errors import UsageError
from millwheel.sdk.topology import TopologyGraph

__all__ = ["Injector"]

_RECORDS_IN_A_ROW: Final = 256
"""How many single records are sent before other tasks may run."""


class Injector:
    """One process of the injector of ``stream``. Use it with ``async with``, from one event loop.

    Unless an exception ends the ``async with`` block, its end waits for the ACKs of all records. The process then still
    holds the low watermark at its last value. Call :meth:`finish` if it never sends again, or :meth:`idle` for a pause.

    It has many methods: programs send in several ways, and ask for several counts.
    """

    def __init__(
        self,
        stream: str,
        *,
        process: str = "injector",
        topology: TopologyGraph | None = None,
        address: str = DEFAULT_ADDRESS,
        source: str | None = None,
        sequencer: int | None = None,
        settings: InjectorSettings | None = None,
    ) -> None:
        """Create an injector. Nothing is sent before :meth:`open`.

        Args:
            stream: The stream to send to: its full name, or a short name in ``topology`` or unique in the cluster.
            process: The name of this process in the stream. A second process of that name ends the first.
            topology: A topology that reads the stream. Its types, codecs and key functions are then used.
            address: The server, as host or host:port; several with commas between them.
            source: The namespace in which ids, partitions and positions are unique. The default is ``process``.
            sequencer: The sequencer of another Injector with this process name, on whose behalf this one sends. Tasks
                of a Spark job use this. Such an injector needs ids for its records and publishes no watermark.
            settings: Time limits, checks and bounds.

        Raises:
            UsageError: A name is not valid, or ``topology`` does not read the stream.
        """
        for what, name in (("process", process), ("source", source or process)):
            if not name or "/" in name:
                raise UsageError(f"an injector's {what} is a name without a slash, not {name!r}")
        if not is_valid(stream):
            raise UsageError(f"an injector's stream is STREAM or TOPOLOGY/STREAM, not {stream!r}")
        self.process = process
        self._address, self._topology, self._delegated = address, topology, sequencer or 0
        self._source = source or process
        self._settings = settings or InjectorSettings()
        self._opened = False
        self._turn = _RECORDS_IN_A_ROW
        self._set_stream(stream if topology is None else full_name(topology.name, stream))

    def _set_stream(self, stream: str) -> None:
        """Create all parts that know the stream's name. Ids depend on it, so :meth:`open` finds the full name first."""
        settings = self._settings
        self.stream = stream
        self._session = InjectorSession(
            self._address, stream, self.process, self._delegated, settings.limits, settings.patience, self._drain
        )
        self._monitor = StallMonitor(self._session, settings.explain)
        self._ids = RecordIds(stream, self.process, self._source)
        self._times = TimeCheck(stream, wall_now, enabled=not settings.any_timestamp)
        self._admission = RecordAdmission(
            self._session, self._ids, self._topology, settings, self._monitor.named, self._drain
        )
        self._intake = RecordIntake(self._session, self._admission, self._times)

    # Life cycle.

    async def __aenter__(self) -> Injector:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._session.is_open:
                await self.flush()
                await self._session.membership.settle()
        finally:
            await self._close()

    async def open(self) -> None:
        """Allocate a sequencer, announce the process, and fetch the routing. An injector is opened once.

        Raises:
            RequestError: The cluster refuses, or does not answer within ``patience`` seconds.
            InjectorError: The stream has no low watermark authority yet, or a newer process has this name.
        """
        if self._opened:
            raise UsageError("an injector is opened once: make another one")
        self._opened = True
        stream = await self._session.full_name()
        if stream != self.stream:
            await self._session.close()
            self._set_stream(stream)
        await self._session.open()
        if not self._session.delegate:
            self._ids.open(self._session.sequencer)
        self._monitor.start()

    async def close(self, timeout: float | None = None) -> None:
        """Close all connections. Un-ACKed records may or may not be delivered: send them again under the same ids.

        Args:
            timeout: Seconds to wait for the ACKs of everything that was sent. None does not wait.

        Raises:
            NotAckedError: Not everything was ACKed in time. The injector is closed nevertheless.
        """
        try:
            if timeout is not None and self._session.is_open:
                await self.flush(timeout)
        finally:
            await self._close()

    async def _close(self) -> None:
        await self._monitor.close()
        await self._admission.stop()
        await self._session.close()
        await self._admission.close()

    # Sending.

    async def send(
        self,
        value: Any,
        *,
        timestamp: Timestamp | int,
        id: UserId | None = None,  # shadows the builtin, because it is the usual word
        position: int | None = None,
        partition: str = "",
    ) -> None:
        """Send one record. Returns when this process has taken the record, which may need a wait for room.

        The record is lost if the process dies now. :meth:`flush` waits until all records are ACKed, and so durable.
        The arguments and errors are those of :meth:`send_many`, for one record.
        """
        self._session.check()
        if not self._intake.put(value, timestamp, id, position, partition):
            ids = None if id is None else (id,)
            positions = None if position is None else (position,)
            await self._admission.send((value,), (timestamp,), ids, positions, partition)
        self._turn -= 1
        if self._turn <= 0:
            self._turn = _RECORDS_IN_A_ROW
            await asyncio.sleep(0)

    def _drain(self) -> None:
        if self._intake.buffer.count:
            self._intake.drain()

    async def send_many(
        self,
        values: Sequence[Any],
        timestamps: Sequence[int],
        *,
        ids: Sequence[UserId] | None = None,
        positions: Sequence[int] | None = None,
        partition: str = "",
        batch: BatchOf | None = None,
        keys: GivenKeys | None = None,
        encoded: bool = False,
    ) -> None:
        """Send records, given as columns of equal length. Returns when all are accepted.

        Records are accepted in order, up to 1,000 at a time. If the call raises, :attr:`accepted` counts earlier ones.

        Args:
            values: The records.
            timestamps: Microseconds since the epoch.
            ids: The user's ids of the records, unique within the source, or within ``batch`` if that is given. Without
                ``ids`` and ``positions`` each record counts as new, even if it was sent before.
            positions: Positions of the records in ``partition``. They rise over all calls of the source's lifetime.
            partition: The partition of the source that ``positions`` belong to.
            batch: The batch of a query in which ``ids`` are unique.
            keys: The keys of the records, by consuming computation. By default the keys are extracted from the values.
            encoded: Whether the values are already encoded.

        Raises:
            ValueEncodeError: A value is not of the stream's type.
            KeyExtractionError: A value has no key.
            TooLargeError: A value or a key is too large.
            UsageError: The columns do not fit together, or positions do not rise.
            InjectorError: The injector has stopped; the error says why.
        """
        self._session.check()
        count = len(values)
        for what, column in (("timestamps", timestamps), ("ids", ids), ("positions", positions)):
            if column is not None and len(column) != count:
                raise UsageError(f"{count} values, but {len(column)} {what}")
        for name, given in keys.items() if isinstance(keys, Mapping) else [("every consumer", keys)]:
            if given is not None and len(given) != count:
                raise UsageError(f"{count} values, but {len(given)} keys for {name}")
        self._times.check(timestamps, "a record's timestamp")
        await self._admission.send(values, timestamps, ids, positions, partition, batch, keys, encoded=encoded)

    @property
    def watermark(self) -> Timestamp:
        """The published watermark, in microseconds. A later record that is older is late."""
        return Timestamp(self._session.core.publication.value)

    @property
    def unacked(self) -> int:
        """Records that some consumer has not ACKed yet, each counted once."""
        self._drain()
        return unacked_records(self._session.core)

    @property
    def record_type(self) -> str:
        """The stream's declared type as readable text. Empty if no topology declares a type."""
        return self._session.routing.record_type

    @property
    def accepted(self) -> int:
        """Records accepted so far, by all calls. After a call has raised, the next record is the faulty one."""
        self._drain()
        return self._session.core.accepted

    @property
    def late(self) -> int:
        """Records sent behind the published watermark so far."""
        self._drain()
        return self._session.core.late

    @property
    def sequencer(self) -> int:
        """The sequencer of this incarnation of the process. Pass it to an Injector that sends on its behalf."""
        return self._session.sequencer

    async def advance(self, watermark: Timestamp | int) -> None:
        """Promise that no later record has a timestamp below ``watermark``.

        A promise never falls: a lower value is ignored. The published watermark is the smaller of the promise and
        the oldest un-ACKed record (4.5).

        Args:
            watermark: Microseconds since the epoch.

        Raises:
            UsageError: ``watermark`` is probably not in microseconds.
            InjectorError: The injector has stopped.
        """
        self._session.check()
        self._check_publishes()
        if not isinstance(watermark, int):
            raise UsageError(f"the watermark is a whole number of microseconds, not {watermark!r}")
        if not self._times.first <= watermark <= self._times.last:
            self._times.check((watermark,), "the watermark")
        if self._session.asleep:
            await self._session.membership.wake()
        self._drain()
        self._session.step(WatermarkDeclared(watermark))

    async def idle(self) -> None:
        """Declare that there is nothing to send for now (G8).

        Waits until every record is ACKed. Then the stream's low watermark advances without this process. It reaches
        this process's promise even if no other process is active. The next :meth:`send` or :meth:`advance` takes part
        again, from the low watermark of that time: older records are late.

        Raises:
            InjectorError: The injector has stopped.
        """
        self._session.check()
        self._check_publishes()
        await self.flush()
        self._drain()
        self._session.step(IdleDeclared())

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every consumer has ACKed every record sent so far. Their effects are then durable.

        Args:
            timeout: Seconds to wait at most. None waits without limit, and the log names the consumers without ACKs.

        Raises:
            NotAckedError: Not everything was ACKed in time. The error names the computation without ACKs, and why.
            InjectorError: The injector has stopped.
        """
        self._drain()
        target = self._session.core.accepted
        try:
            async with asyncio.timeout(timeout) as limit:
                await self._session.until(lambda: self._session.core.flushed(target))
        except TimeoutError as error:
            if not limit.expired():
                raise
            why = await self._monitor.explain()
            raise NotAckedError(self.stream, self.process, timeout or 0.0, why) from error

    @property
    def stall(self) -> str:
        """Which computation does not ACK, and why. Empty unless ACKs are missing for ten seconds or more."""
        return self._monitor.text

    async def settle(self) -> None:
        """Wait until the low watermark authority has journaled the published watermark, so that it survives restarts.

        Raises:
            InjectorError: The authority does not confirm it within ``patience`` seconds.
        """
        self._drain()
        await self._session.membership.settle()

    async def finish(self, timeout: float | None = None) -> None:
        """End this process's part of the stream: wait for the ACKs, then publish plus infinity. This is final.

        The injector accepts no records from this call on. If the call fails or is cancelled, call it again.

        Args:
            timeout: Seconds to wait at most. None waits without limit.

        Raises:
            InjectorError: As :meth:`flush` and :meth:`settle`.
        """
        self._check_publishes()
        if not self._session.core.publication.finishing:
            self._session.check()
            self._drain()
            self._session.step(EndDeclared())
        await self.flush(timeout)
        await self._session.membership.settle()

    def _check_publishes(self) -> None:
        if self._session.delegate:
            raise UsageError("an injector that sends on another's behalf leaves the watermark to that one")

    def acknowledged(self, partition: str = "") -> int | None:
        """The position from which the source may restart ``partition`` after a crash: all lower positions are ACKed.

        None if this process sent no record of the partition.
        """
        self._drain()
        return self._session.core.acknowledged(self._ids.partition(partition))
