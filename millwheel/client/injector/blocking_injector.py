"""The injector for programs without an event loop, such as scripts and Spark executors (section 5.2)."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any, NoReturn, TypeVar

from millwheel.client.background import BackgroundLoop, LoopStoppedError
from millwheel.client.control import DEFAULT_ADDRESS
from millwheel.client.injector.encoding import GivenKeys
from millwheel.client.injector.errors import InjectorClosedError, InjectorError
from millwheel.client.injector.ids import BatchOf, UserId
from millwheel.client.injector.injector import Injector
from millwheel.client.injector.settings import InjectorSettings
from millwheel.model.time import Timestamp
from millwheel.sdk.errors import UsageError
from millwheel.sdk.topology import TopologyGraph

__all__ = ["BlockingInjector"]

T = TypeVar("T")


class BlockingInjector:
    """An :class:`Injector` that runs in a background thread. Use it with ``with``.

    Each call does what the Injector's call does, and blocks until it is done. Calls may come from any thread. The
    object belongs to the operating system process that created it. It cannot be pickled or used after a fork: create
    one in each task.

    It has many methods, because it has those of Injector, and its counts.
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
        """The arguments are those of :class:`Injector`."""
        self._injector = Injector(
            stream,
            process=process,
            topology=topology,
            address=address,
            source=source,
            sequencer=sequencer,
            settings=settings,
        )
        self._pid = os.getpid()
        self._loop: BackgroundLoop | None = None

    def __reduce__(self) -> NoReturn:
        raise UsageError("an injector is not pickled: make it where it is used, and pass on its arguments instead")

    def __enter__(self) -> BlockingInjector:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._do(self._injector.__aexit__(kind, error, trace))
        finally:
            self._stop()

    def open(self) -> None:
        """See :meth:`Injector.open`."""
        if self._loop is not None:
            raise UsageError("an injector is opened once: make another one")
        self._loop = BackgroundLoop("millwheel-injector")
        try:
            self._do(self._injector.open())
        except BaseException:
            self._stop()
            raise

    def close(self, timeout: float | None = None) -> None:
        """See :meth:`Injector.close`."""
        if self._loop is not None and self._loop.is_open:
            try:
                self._do(self._injector.close(timeout))
            finally:
                self._stop()

    def send(
        self,
        value: Any,
        *,
        timestamp: Timestamp | int,
        id: UserId | None = None,
        position: int | None = None,
        partition: str = "",
    ) -> None:
        """See :meth:`Injector.send`."""
        self._do(
            self._injector.send(value, timestamp=timestamp, id=id, position=position, partition=partition)
        )  # fmt: skip

    def send_many(
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
        """See :meth:`Injector.send_many`."""
        self._do(
            self._injector.send_many(
                values,
                timestamps,
                ids=ids,
                positions=positions,
                partition=partition,
                batch=batch,
                keys=keys,
                encoded=encoded,
            )
        )

    def send_table(
        self,
        table: Any,
        *,
        timestamp: str,
        position: int | None = None,
        partition: str = "",
        id_column: str | None = None,
        batch: BatchOf | None = None,
    ) -> None:
        """See :meth:`Injector.send_table`."""
        self._do(
            self._injector.send_table(
                table, timestamp=timestamp, position=position, partition=partition, id_column=id_column, batch=batch
            )
        )

    def advance(self, watermark: Timestamp | int) -> None:
        """See :meth:`Injector.advance`."""
        self._do(self._injector.advance(watermark))

    def idle(self) -> None:
        """See :meth:`Injector.idle`."""
        self._do(self._injector.idle())

    def flush(self, timeout: float | None = None) -> None:
        """See :meth:`Injector.flush`."""
        self._do(self._injector.flush(timeout))

    def settle(self) -> None:
        """See :meth:`Injector.settle`."""
        self._do(self._injector.settle())

    def finish(self, timeout: float | None = None) -> None:
        """See :meth:`Injector.finish`."""
        self._do(self._injector.finish(timeout))

    # What it has counted, and how it is. It may also be asked when the injector is closed.

    def acknowledged(self, partition: str = "") -> int | None:
        """See :meth:`Injector.acknowledged`."""
        return self._read(lambda: self._injector.acknowledged(partition))

    @property
    def watermark(self) -> Timestamp:
        """See :attr:`Injector.watermark`."""
        return self._read(lambda: self._injector.watermark)

    @property
    def sequencer(self) -> int:
        """See :attr:`Injector.sequencer`."""
        return self._injector.sequencer

    @property
    def accepted(self) -> int:
        """See :attr:`Injector.accepted`."""
        return self._read(lambda: self._injector.accepted)

    @property
    def acks(self) -> int:
        """See :attr:`Injector.acks`."""
        return self._read(lambda: self._injector.acks)

    @property
    def unacked(self) -> int:
        """See :attr:`Injector.unacked`."""
        return self._read(lambda: self._injector.unacked)

    @property
    def late(self) -> int:
        """See :attr:`Injector.late`."""
        return self._read(lambda: self._injector.late)

    @property
    def known(self) -> int:
        """See :attr:`Injector.known`."""
        return self._read(lambda: self._injector.known)

    @property
    def by_columns(self) -> int:
        """See :attr:`Injector.by_columns`."""
        return self._read(lambda: self._injector.by_columns)

    @property
    def by_rows(self) -> int:
        """See :attr:`Injector.by_rows`."""
        return self._injector.by_rows

    @property
    def stall(self) -> str:
        """See :attr:`Injector.stall`."""
        return self._injector.stall

    @property
    def unreachable(self) -> str:
        """See :attr:`Injector.unreachable`."""
        return self._read(lambda: self._injector.unreachable)

    @property
    def failure(self) -> InjectorError | None:
        """See :attr:`Injector.failure`."""
        return self._injector.failure

    def _read(self, what: Callable[[], T]) -> T:
        """Read what the thread changes: in that thread while it runs."""

        async def read() -> T:
            return what()

        try:
            return self._do(read())
        except InjectorClosedError:
            return what()

    def _do(self, call: Coroutine[Any, Any, T]) -> T:
        if os.getpid() != self._pid:
            call.close()
            raise UsageError("an injector does not outlive a fork: make it in the process that uses it")
        name = f"the injector of stream {self._injector.stream!r}"
        try:
            if self._loop is None:
                call.close()
                raise LoopStoppedError("not opened yet")
            return self._loop.run(call)
        except LoopStoppedError:
            raise InjectorClosedError(f"{name} is not open: use `with`") from None
        except CancelledError:
            raise InjectorClosedError(f"{name} was closed") from None

    def _stop(self) -> None:
        if self._loop is not None:
            self._loop.stop()
