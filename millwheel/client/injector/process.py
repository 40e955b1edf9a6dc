"""One process of an injector: its opening, its pauses and its end, and what it counts (section 5.2)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from types import TracebackType
from typing import Self

from millwheel.client.control import DEFAULT_ADDRESS
from millwheel.client.injector.admission import RecordAdmission
from millwheel.client.injector.errors import InjectorError
from millwheel.client.injector.ids import RecordIds
from millwheel.client.injector.intake import RecordIntake
from millwheel.client.injector.likelihood import TimeCheck
from millwheel.client.injector.measures import InjectorMeasures
from millwheel.client.injector.messages import EndDeclared, IdleDeclared
from millwheel.client.injector.session import InjectorSession
from millwheel.client.injector.settings import InjectorSettings
from millwheel.client.injector.stalls import StallMonitor
from millwheel.client.injector.tables import TableAdmission
from millwheel.client.injector.traced import TracedIntake, TracedSession
from millwheel.client.injector.unacked import unacked_records
from millwheel.client.measured import INJECTORS
from millwheel.client.tracing import client_tracing
from millwheel.model.stream_names import full_name, is_valid
from millwheel.model.time import Timestamp
from millwheel.rpc.clock import wall_now
from millwheel.sdk.errors import UsageError
from millwheel.sdk.topology import TopologyGraph

__all__ = ["InjectorProcess"]


class InjectorProcess(ABC):
    """The life of one process of an injector. ``Injector`` sends its records.

    It has many methods: eleven tell what it has counted, and how it is.
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
        self._measures: InjectorMeasures | None = None
        self._set_stream(stream if topology is None else full_name(topology.name, stream))

    def _set_stream(self, stream: str) -> None:
        """Create all parts that know the stream's name. Ids depend on it, so :meth:`open` finds the full name first."""
        settings = self._settings
        self.stream = stream
        tracing = client_tracing()
        make = InjectorSession if tracing is None else partial(TracedSession, tracing)
        self._session: InjectorSession = make(
            self._address, stream, self.process, self._delegated, settings.limits, settings.patience, self._drain
        )
        self._monitor = StallMonitor(self._session, settings.explain)
        self._ids = RecordIds(stream, self.process, self._source)
        self._times = TimeCheck(stream, wall_now, enabled=not settings.any_timestamp)
        self._admission = RecordAdmission(
            self._session, self._ids, self._topology, settings, self._monitor.named, self._drain
        )
        self._tables = TableAdmission(self._session, self._admission, settings)
        self._intake = _intake_for(self._session, self._admission, self._times)

    # Life cycle.

    async def __aenter__(self) -> Self:
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
        self._ids.hash_within(self._session.routing.id_stream)
        if not self._session.delegate:
            self._ids.open(self._session.sequencer)
        self._monitor.start()
        session = self._session
        self._measures = InjectorMeasures(
            session.core, self._admission.waits, self._tables.counts, publishes=not session.delegate
        )
        INJECTORS.enter(self._measures)

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
        if self._measures is not None:
            INJECTORS.leave(self._measures)
        await self._monitor.close()
        await self._admission.stop()
        await self._session.close()
        await self._admission.close()

    @abstractmethod
    def _drain(self) -> None:
        """Pass the records that wait for the next turn of the event loop to the core."""

    @abstractmethod
    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every consumer has ACKed every record sent so far."""

    async def idle(self) -> None:
        """Declare that there is nothing to send for now (G8).

        Waits until every record is ACKed. Then the stream's low watermark advances without this process. It reaches
        this process's promise even if no other process is active. The next :meth:`send` or :meth:`advance` takes part
        again, from the low watermark of that time: older records are late.

        Raises:
            InjectorError: The injector has stopped.
        """
        self._session.check()
        self._session.check_publishes()
        await self.flush()
        self._drain()
        self._session.step(IdleDeclared())

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
        self._session.check_publishes()
        if not self._session.core.publication.finishing:
            self._session.check()
            self._drain()
            self._session.step(EndDeclared())
        await self.flush(timeout)
        await self._session.membership.settle()

    @property
    def failure(self) -> InjectorError | None:
        """Why the injector has stopped, or is not open. None while it works."""
        return self._session.stopped()

    # Counts.

    @property
    def watermark(self) -> Timestamp:
        """The published watermark, in microseconds. A later record that is older is late.

        Before the first promise it is ``MIN_TIMESTAMP``. ``millwheel.format_timestamp`` shows it as others do: -inf.
        """
        self._drain()
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
    def known(self) -> int:
        """ACKs for records that had taken effect before this process sent them, one for each of their consumers.

        A record that was repeated because its ACK was lost is not one of them.
        """
        self._drain()
        return self._session.core.known

    @property
    def acks(self) -> int:
        """ACKs so far. Each consumer of the stream ACKs each record once."""
        self._drain()
        return self._session.core.acked

    @property
    def by_columns(self) -> int:
        """Records that :meth:`send_table` has sent as columns so far."""
        self._drain()
        return self._tables.counts.by_columns

    @property
    def by_rows(self) -> int:
        """Records that :meth:`send_table` has encoded one by one so far. The log has said why."""
        return self._tables.counts.by_rows

    @property
    def sequencer(self) -> int:
        """The sequencer of this incarnation of the process. Pass it to an Injector that sends on its behalf."""
        return self._session.sequencer

    @property
    def stall(self) -> str:
        """Which computation does not ACK, and why. Empty unless ACKs are missing for ten seconds or more."""
        return self._monitor.text

    @property
    def unreachable(self) -> str:
        """Which consumer of the stream no record can reach now, and why. Empty: each has an owner that is connected.

        It is not empty for a moment while owners change, and when the injector has just been opened.
        """
        return self._session.unreachable()

    def acknowledged(self, partition: str = "") -> int | None:
        """The position from which the source may restart ``partition`` after a crash: all lower positions are ACKed.

        None if this process sent no record of the partition.
        """
        self._drain()
        return self._session.core.acknowledged(self._ids.partition(partition))


def _intake_for(session: InjectorSession, admission: RecordAdmission, times: TimeCheck) -> RecordIntake:
    """The intake of a session's records."""
    if isinstance(session, TracedSession):
        return TracedIntake(session, admission, times)
    return RecordIntake(session, admission, times)
