"""Sends the records of letters to the computation that failed, until it has ACKed them (6.1.1).

The sender takes no part in a watermark. It has no sequencer, and needs none: a letter has one id for all time, and
receivers know it until the next batch of letters begins.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final

import grpc

from millwheel.client.dead_letters.letters import Letter
from millwheel.client.dead_letters.targets import LetterTarget, LetterTargets
from millwheel.client.injector.routing import Route
from millwheel.model.backoff import Backoff
from millwheel.model.deliveries import BatchIds, Delivery, Sender
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.channel import PASSING, open_channel
from millwheel.rpc.deliveries import answered_tokens, encode_delivery
from millwheel.rpc.errors import from_rpc_error
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.rpc.v1.delivery_pb2_grpc import DeliveryServiceStub
from millwheel.sdk.dead_letters import letter_id, letter_query

__all__ = ["LetterSender"]

_ATTEMPT_SECONDS: Final = 10.0
"""Seconds without an answer after which the owners are looked up again, and what is not ACKed is sent again."""


class LetterSender:
    """Sends letters of one log."""

    def __init__(self, targets: LetterTargets, book: IncarnationId, patience: float, end: float | None = None) -> None:
        """
        Args:
            targets: The owners of computations' intervals.
            book: The incarnation id of the letters' log.
            patience: Seconds to wait for the next ACK.
            end: When it stops, by the event loop's clock. None: never.
        """
        self._targets = targets
        self._query = letter_query(book)
        self._sender = Sender(f"replay/{book}", 0, None, f"replay/{book}")
        self._patience = patience
        self._end = end
        self.why = ""
        """Why letters of the last :meth:`send` are not ACKed."""

    async def send(self, target: LetterTarget, letters: Sequence[Letter], batch: int) -> list[int]:
        """Send letters of one batch to their target. Returns the offsets of those that are ACKed.

        Raises:
            RequestError: The target does not exist any more, or refuses a record for good.
        """
        self.why = ""
        waiting = {letter.offset: letter for letter in letters}
        loop, backoff, failures = asyncio.get_running_loop(), Backoff(), 0
        until = loop.time() + self._patience
        while waiting:
            before = len(waiting)
            try:
                async with asyncio.timeout_at(self._end):
                    await self._attempt(target, waiting, batch)
            except TimeoutError:
                # What the attempts before have found is the cause.
                self.why = self.why or "the time for this replay is over"
                break
            except RequestError as error:
                if error.code not in PASSING:
                    raise
                self.why = error.message
            if len(waiting) < before:
                failures, until = 0, loop.time() + self._patience
                continue
            failures += 1
            if (remaining := until - loop.time()) <= 0:
                break
            await asyncio.sleep(min(remaining, backoff.delay(failures, random.random())))
        return [letter.offset for letter in letters if letter.offset not in waiting]

    async def _attempt(self, target: LetterTarget, waiting: dict[int, Letter], batch: int) -> None:
        """Send what is waiting to the present owners, each by a call. ACKed letters leave ``waiting``."""
        consumer = await self._targets.consumer(target)
        by_owner: dict[str, dict[str, list[Letter]]] = {}
        for letter in waiting.values():
            route: Route = consumer.routes[bisect_right(consumer.starts, letter.content.delivery_key)]
            by_owner.setdefault(route.address, {}).setdefault(route.journal, []).append(letter)
        if "" in by_owner:
            self.why = "no worker owns some of the keys: the topology is paused, or workers are missing"
            del by_owner[""]
        calls = []
        for address, journals in by_owner.items():
            deliveries = [self._delivery(target, journal, found, batch) for journal, found in journals.items()]
            calls.append(_Call(deliveries, waiting).run(address))
        problems = await asyncio.gather(*calls)
        self.why = next((problem for problem in problems if problem), self.why)

    def _delivery(self, target: LetterTarget, journal: str, letters: Sequence[Letter], batch: int) -> Delivery:
        return Delivery(
            target.incarnation,
            journal,
            target.stream,
            self._sender,
            BatchIds(self._query, batch, [letter_id(letter.offset) for letter in letters]),
            [letter.content.delivery_key for letter in letters],
            [letter.content.value for letter in letters],
            [letter.content.timestamp for letter in letters],
        )


class _Call:
    """One call to one owner. ``open`` has the records of each delivery that are neither ACKed nor refused."""

    def __init__(self, deliveries: Sequence[Delivery], waiting: dict[int, Letter]) -> None:
        self._deliveries = deliveries
        self._waiting = waiting
        self._open = [set(range(len(one.keys))) for one in deliveries]
        self._refused = False
        self._why = "its owner gave no answer"

    async def run(self, address: str) -> str:
        """Send, and read answers until nothing is open. Returns why something is not ACKed, or an empty text.

        Raises:
            RequestError: The owner refuses a record for good.
        """
        try:
            async with open_channel(address) as channel:
                stub: Any = DeliveryServiceStub(channel)
                call = stub.Deliver()
                try:
                    for token, delivery in enumerate(self._deliveries):
                        await call.write(encode_delivery(delivery, token))
                    while any(self._open):
                        async with asyncio.timeout(_ATTEMPT_SECONDS):
                            response = await call.read()
                        if not isinstance(response, wire.DeliverResponse):
                            break
                        self._take(response)
                finally:
                    call.cancel()
        except grpc.aio.AioRpcError as error:
            self._why = from_rpc_error(error, f"worker {address}").message
        except (TimeoutError, asyncio.InvalidStateError):
            self._why = f"worker {address} has received the records, and not committed them"
        return self._why if any(self._open) or self._refused else ""

    def _take(self, response: wire.DeliverResponse) -> None:
        named = set(response.indexes)
        for token in answered_tokens(response):
            if response.outcome == wire.DELIVERY_OUTCOME_ACKED:
                self._acked(token, self._open[token] - named)
                continue
            if response.outcome == wire.DELIVERY_OUTCOME_INVALID:
                raise RequestError(
                    FailureCode.INVALID_ARGUMENT, f"{self._deliveries[token].consumer} refuses: {response.message}"
                )
            # Another replay sends a copy, the queue is full, or the interval has moved. What is refused is sent again.
            self._open[token] -= named or self._open[token]
            self._refused, self._why = True, response.message

    def _acked(self, token: int, indexes: set[int]) -> None:
        ids = self._deliveries[token].ids
        assert isinstance(ids, BatchIds)
        self._open[token] -= indexes
        for index in indexes:
            self._waiting.pop(int.from_bytes(ids.ids[index], "big"), None)
