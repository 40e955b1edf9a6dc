"""An injector process in the raw: positions, marks, resending and watermarks by the wire's rules alone (section 5.2).

Independent of the client library, so that a mistake there cannot hide one in the server. Run as
``python -m tests.system.feeder ADDRESS SEED PLACE RATE``: it injects the records of a load, until the file
``PLACE/stop`` appears; then it says by ``PLACE/count`` how many there were, and goes on until it is killed.
A process that was killed and runs again begins with what ``PLACE/acked`` says was ACKed, and ends no sooner than
``PLACE/taken``, which the one before may have sent.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from itertools import islice
from pathlib import Path
from typing import Any

import grpc
import msgspec

from millwheel.client.control import ControlClient
from millwheel.client.watermarks import WatermarkClient
from millwheel.model.time import MAX_TIMESTAMP
from millwheel.rpc.cancelling import raise_if_cancelled
from millwheel.rpc.channel import open_channel
from millwheel.rpc.deliveries import answered_tokens
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.rpc.v1 import delivery_pb2_grpc
from millwheel.rpc.watermarks import WatermarkReport
from millwheel.rpc.writing import writing
from tests.system.counting import Load

BATCH = 20
WINDOW = 2_000
STREAM, PROCESS = "counting/events", "feeder"
Row = tuple[int, bytes, bytes, int]


class Feeder:
    """Sends rows (position, key, value, timestamp) until each is ACKed."""

    def __init__(self, load: Load, address: str, place: Path, rate: float) -> None:
        self.load, self.address, self.place, self.rate = load, address, place, rate
        self.base = kept(place, "acked")
        """Every record below this position is ACKed."""
        self.taken = kept(place, "taken")
        """Records below this position may have been sent by a process before this one."""
        self.next = self.base
        self.rows = islice(load.records(), self.base, None)
        self.open: dict[int, Row] = {}
        self.flights: dict[int, dict[int, int]] = {}
        self.to_send: list[int] = []
        self.again: set[int] = set()
        self.tokens = 0
        self.count: int | None = None
        self.wake = asyncio.Event()

    async def run(self) -> None:
        """Send for ever."""
        async with ControlClient(self.address, patience=60.0) as control:
            opened = await control.open_injector(STREAM, PROCESS)
            self.sequencer = opened.sequencer
            found = await control.get_topology("counting")
            incarnation = found.topology.incarnations["counter"]
            self.consumer = incarnation
            record = next(one for one in found.interval_maps if one.computation == "counter")
            self.intervals = list(record.intervals)
        async with WatermarkClient(self.address, on_refused=_refused) as watermarks:
            await watermarks.accept(f"injector/{STREAM}", PROCESS, self.sequencer)
            self.watermarks = watermarks
            # Neither ends: one that does, by an error or a cancellation that nobody asked for, is the process's end.
            tasks = [asyncio.create_task(self._produce()), asyncio.create_task(self._deliver())]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    async def _produce(self) -> None:
        """Take up records at their rate."""
        while self.count is None:
            await asyncio.sleep(BATCH / self.rate)
            if len(self.open) < WINDOW:
                self.taken = max(self.taken, self.next + BATCH)
                keep(self.place, "taken", self.taken)
                for event, timestamp in islice(self.rows, BATCH):
                    value = msgspec.msgpack.encode(event)
                    self.open[self.next] = (self.next, event.key.encode(), value, timestamp)
                    self.to_send.append(self.next)
                    self.next += 1
                self.wake.set()
            if self.next >= self.taken and (self.place / "stop").exists():
                self.count = self.next
                keep(self.place, "count", self.count)
                self._publish()
        await asyncio.Event().wait()

    async def _deliver(self) -> None:
        """Keep a stream open; all that it had not ACKed when it broke is sent again on the next."""
        while True:
            self.to_send = sorted(self.open)
            self.flights.clear()
            try:
                async with open_channel(self.address) as channel:
                    await self._converse(delivery_pb2_grpc.DeliveryServiceStub(channel).Deliver())  # type: ignore[call-arg]
            except (grpc.aio.AioRpcError, asyncio.CancelledError):
                # The server was killed: to the next attempt. A call that fails while it is written to may show it by a
                # cancellation.
                raise_if_cancelled()
            await asyncio.sleep(0.02)

    async def _converse(self, call: Any) -> None:
        """Write for as long as answers come."""
        async with writing(call, self._write(call)):
            async for response in call:
                self._answered(response)

    async def _write(self, call: Any) -> None:
        async for request in self._requests():
            await call.write(request)

    async def _requests(self) -> AsyncIterator[wire.DeliverRequest]:
        while True:
            positions, self.to_send = self.to_send[:BATCH], self.to_send[BATCH:]
            for interval in self.intervals:
                rows = [self.open[at] for at in positions if at in self.open and _has(interval.keys, self.open[at][1])]
                if rows:
                    yield self._request(interval.journal, rows)
            if not self.to_send:
                self.wake.clear()
                await self.wake.wait()

    def _request(self, journal: str, rows: list[Row]) -> wire.DeliverRequest:
        self.tokens += 1
        self.flights[self.tokens] = {index: row[0] for index, row in enumerate(rows)}
        request = wire.DeliverRequest(
            token=self.tokens,
            consumer=self.consumer,
            journal=journal,
            stream=STREAM,
            sender=wire.Sender(
                name=f"injector/{STREAM}/{PROCESS}", sequencer=self.sequencer, computation=f"injector/{STREAM}"
            ),
            keys=[row[1] for row in rows],
            values=[row[2] for row in rows],
            timestamps_us=[row[3] for row in rows],
        )
        request.positions.sequence = f"{STREAM}/{PROCESS}/0"
        request.positions.mark = self.base
        request.positions.positions.extend(row[0] for row in rows)
        return request

    def _answered(self, response: wire.DeliverResponse) -> None:
        for token in answered_tokens(response):
            self._heed(token, response)

    def _heed(self, token: int, response: wire.DeliverResponse) -> None:
        flight = self.flights.get(token, {})
        if response.outcome == wire.DELIVERY_OUTCOME_ACKED:
            remaining = set(response.indexes)
            for index in [index for index in flight if index not in remaining]:
                self.open.pop(flight.pop(index), None)
            self.base = min(self.open, default=self.next)
            self._publish()
            return
        assert response.outcome in (wire.DELIVERY_OUTCOME_REFUSED_FULL, wire.DELIVERY_OUTCOME_NOT_OWNER), response
        again = [flight.pop(index) for index in (response.indexes or sorted(flight)) if index in flight]
        if not self.again:
            asyncio.get_running_loop().call_later(0.02, self._send_again)
        self.again.update(again)

    def _send_again(self) -> None:
        again, self.again = self.again, set()
        self.to_send = sorted({*self.to_send, *again} & self.open.keys())
        self.wake.set()

    def _publish(self) -> None:
        """What is ACKed may be forgotten here, and holds the low watermark no more."""
        keep(self.place, "acked", self.base)
        low = self.base * self.load.spacing
        if self.count is not None and self.base == self.count:
            low = MAX_TIMESTAMP
        self.watermarks.report(WatermarkReport(f"injector/{STREAM}", PROCESS, self.sequencer, low))


def _has(keys: object, key: bytes) -> bool:
    start, end = keys.start, keys.end if keys.HasField("end") else None  # type: ignore[attr-defined]
    return bool(start <= key and (end is None or key < end))


def kept(place: Path, name: str) -> int:
    """A number that a process before this one kept; 0 if none did."""
    path = place / name
    return int(path.read_text()) if path.exists() else 0


def keep(place: Path, name: str, number: int) -> None:
    """Keep a number for the next process."""
    fresh = place / f"{name}.new"
    fresh.write_text(str(number))
    fresh.replace(place / name)


def _refused(report: WatermarkReport) -> None:
    print(f"a report was refused: {report}", file=sys.stderr)


if __name__ == "__main__":
    _, address, seed, place, rate = sys.argv
    asyncio.run(Feeder(Load(int(seed)), address, Path(place), float(rate)).run())
