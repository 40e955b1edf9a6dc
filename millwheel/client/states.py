"""Looks up the states that a computation has of keys, from a program outside (section 4.4).

::

    async with StateReader("zeitgeist/model", Model) as models:
        model = await models.get("cat videos")

A look-up goes to the owner of the key. It returns a state that was the newest committed one at some moment between the
call and its return. So it has every record that was ACKed before the call, and no effect that is not committed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

import grpc

from millwheel.client.background import BackgroundLoop
from millwheel.client.control import DEFAULT_ADDRESS, ControlClient
from millwheel.client.owned_intervals import incarnation_of, owned_interval, owners_of, split_computation_name
from millwheel.model.backoff import Backoff
from millwheel.model.incarnation import IncarnationId
from millwheel.model.limits import MAX_KEY_BYTES
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS, PASSING, open_channel
from millwheel.rpc.errors import calling
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.v1 import state_pb2 as wire
from millwheel.rpc.v1.state_pb2_grpc import StateServiceStub
from millwheel.sdk.codecs import Codec, codec_for

__all__ = ["BlockingStateReader", "StateReader"]

State = TypeVar("State")
_MAX_KEYS: Final = 1_000
"""Keys in one request. A worker refuses more."""
_AGAIN: Final = PASSING | {FailureCode.RESOURCE_EXHAUSTED}


class StateReader(Generic[State]):
    """Looks up the states of one computation by key. Use it with ``async with``.

    A topology that is cancelled and submitted again begins without states. Open another reader for it: this one may
    show the former states until their owners have stopped.

    Each look-up costs the owner one small read of the store, which look-ups of the same moment share. So ask for many
    keys at a time where you can.

    Args:
        computation: ``TOPOLOGY/COMPUTATION``, such as ``"zeitgeist/model"``.
        state_type: The type of the state, as the computation declares it.
        codec: The computation's ``state_codec``, if it has one.
        address: A master's address, as host or host:port; several with commas between them.
        patience: Seconds to look for an owner that cannot be reached, for example while an interval moves.

    Raises:
        RequestError: ``computation`` is not of this form. By look-ups: there is no such computation, its state is of
            another type or damaged, or no owner was found in time.
    """

    def __init__(
        self,
        computation: str,
        state_type: type[State],
        *,
        codec: Codec[State] | None = None,
        address: str = DEFAULT_ADDRESS,
        patience: float = 60.0,
    ) -> None:
        self.computation = computation
        self._topology, self._name = split_computation_name(computation)
        self._decode = codec_for(state_type, f"the state of {computation}", codec).decode
        self._patience = patience
        self._control = ControlClient(address)
        self._placement: control.GetTopologyResponse | None = None
        """The interval maps as last read. None: they are read before the next request."""
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def __aenter__(self) -> StateReader[State]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._close_channels(except_to=())
        await self._control.close()

    async def _close_channels(self, except_to: Collection[str]) -> None:
        """Close the channels to all workers but some."""
        for address in self._channels.keys() - except_to:
            await self._channels.pop(address).close(None)

    async def get(self, key: str) -> State | None:
        """The state of a key.

        Args:
            key: The key, as the computation's hooks see it in ``ctx.key``.

        Returns:
            The state. None if the key has none.

        Raises:
            RequestError: See the class.
            ValueDecodeError: The state is of another type than ``state_type``.
        """
        return (await self.get_many([key])).get(key)

    async def get_many(self, keys: Iterable[str]) -> dict[str, State]:
        """The states of several keys. They are not one snapshot: each is as of a moment of its own.

        Args:
            keys: The keys.

        Returns:
            The states by key, without the keys that have none.

        Raises:
            RequestError: See the class.
            ValueDecodeError: A state is of another type than ``state_type``.
        """
        left = {_encoded(key): key for key in keys}
        found: dict[str, State] = {}
        backoff, failures = Backoff(), 0
        loop = asyncio.get_running_loop()
        end = loop.time() + self._patience
        while left:
            try:
                await self._ask_owners(left, found)
                failures = 0
            except RequestError as error:
                # The owner may have changed, so the next attempt reads the interval maps again.
                self._placement = None
                remaining = end - loop.time()
                if remaining <= 0 or not (error.code in _AGAIN or error.reason == "NOT_OWNER"):
                    raise
                failures += 1
                await asyncio.sleep(min(remaining, backoff.delay(failures, random.random())))
        return found

    async def _ask_owners(self, left: dict[bytes, str], found: dict[str, State]) -> None:
        """Ask each owner once for its keys. What is answered moves from ``left`` to ``found``."""
        if self._placement is None:
            self._placement = await self._control.get_topology(self._topology)
            await self._close_channels(except_to=owners_of(self._placement))
        incarnation = incarnation_of(self._placement.topology, self._name)
        by_owner: dict[str, list[bytes]] = {}
        for key in left:
            address = owned_interval(self._placement, self._name, key).owner.address
            by_owner.setdefault(address, []).append(key)
        asked = [self._ask(address, incarnation, keys[:_MAX_KEYS]) for address, keys in by_owner.items()]
        failure: BaseException | None = None
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, BaseException):
                failure = answer
                continue
            for key, state in answer:
                name = left.pop(key)
                if state:
                    found[name] = self._decode(state)
        if failure is not None:
            raise failure

    async def _ask(self, address: str, incarnation: IncarnationId, keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """The states of the first keys, at least of one. An owner with large states does not answer for all."""
        request = wire.GetStatesRequest(incarnation=incarnation, keys=keys)
        if address not in self._channels:
            self._channels[address] = open_channel(address)
        async with calling(address):
            stub = StateServiceStub(self._channels[address])
            response = await stub.GetStates(request, timeout=DEFAULT_DEADLINE_SECONDS)
        if not response.states:
            raise RequestError(FailureCode.UNAVAILABLE, f"the worker at {address} answered for no key")
        for key, state in zip(keys, response.states, strict=False):
            if state.error:
                raise RequestError(
                    FailureCode.DATA_LOSS,
                    f"the state of key {key.decode()!r} of {self.computation} cannot be read: {state.error}",
                    f"`millwheel key inspect {self.computation} KEY` shows the key",
                    reason="STATE_UNREADABLE",
                )
        return [(key, state.state) for key, state in zip(keys, response.states, strict=False)]


def _encoded(key: str) -> bytes:
    encoded = key.encode()
    if len(encoded) > MAX_KEY_BYTES:
        raise RequestError(
            FailureCode.INVALID_ARGUMENT, f"the key has {len(encoded):,} bytes", f"the limit is {MAX_KEY_BYTES:,}"
        )
    return encoded


class BlockingStateReader(Generic[State]):
    """A :class:`StateReader` for programs without an event loop. Use it with ``with``.

    The arguments are those of :class:`StateReader`. The reader runs in a background thread.
    """

    def __init__(self, computation: str, state_type: type[State], **options: Any) -> None:
        self._loop = BackgroundLoop(f"millwheel-states-{computation}")
        self._reader = self._loop.enter(lambda: StateReader(computation, state_type, **options))

    def __enter__(self) -> BlockingStateReader[State]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def get(self, key: str) -> State | None:
        """The state of a key, or None. See :meth:`StateReader.get`."""
        return self._loop.run(self._reader.get(key))

    def get_many(self, keys: Iterable[str]) -> dict[str, State]:
        """The states of several keys. See :meth:`StateReader.get_many`."""
        return self._loop.run(self._reader.get_many(keys))

    def close(self) -> None:
        """Close all connections, and end the thread."""
        self._loop.leave(self._reader.close)
