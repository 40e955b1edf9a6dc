"""Reads all states of a computation, by ranges of keys (section 4.4).

What it shows of a key is committed, and a state is as of one commit. Nothing stops meanwhile, so several keys are no
snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from millwheel.client.control import DEFAULT_ADDRESS
from millwheel.client.owned_intervals import incarnation_of, owned_intervals, split_computation_name
from millwheel.client.owner_client import OwnerClient, with_successor
from millwheel.model.incarnation import IncarnationId
from millwheel.model.interval_map import interval_from_proto
from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.rpc.channel import PASSING
from millwheel.rpc.errors import calling
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import common_pb2 as common
from millwheel.rpc.v1 import state_pb2 as wire
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.rpc.v1.state_pb2_grpc import StateServiceStub

__all__ = ["StatePages"]

log = logging.getLogger("millwheel.client")

_PAGE_SIZE: Final = 10_000
_PAGE_SECONDS: Final = 30.0
"""How long an owner may take for a page. It makes one at a time, and other readers may be before this one."""
_PASSING: Final = PASSING | {FailureCode.RESOURCE_EXHAUSTED}


class StatePages(OwnerClient):
    """All states of one computation. Use it with ``async with``.

    Args:
        computation: ``TOPOLOGY/COMPUTATION``, such as ``"zeitgeist/model"``.
        address: A master's address, as host or host:port; several with commas between them.
        patience: Seconds to look for an owner that cannot be reached, for example while an interval moves.
        incarnation: The computation that is meant. Empty: the one that is there first. If the topology is cancelled and
            submitted again, its states are others, which is an error.

    Raises:
        RequestError: By each call. There is no such computation, or another one than was meant (reason
            ``COMPUTATION_REPLACED``); a state is damaged (``STATE_UNREADABLE``); or no owner was found in time.
    """

    def __init__(
        self, computation: str, *, address: str = DEFAULT_ADDRESS, patience: float = 60.0, incarnation: str = ""
    ) -> None:
        self._topology, self._name = split_computation_name(computation)
        super().__init__(address, patience, _PASSING)
        self.computation = computation
        self.incarnation = IncarnationId(incarnation)
        self.spec = specs.ComputationSpec()
        """The computation's declaration, once it was found."""
        self._intervals: Sequence[catalog.IntervalRecord] = ()
        """The intervals as last read. Empty: they are read before the next request."""

    async def ranges(self) -> list[KeyInterval]:
        """The ranges of keys that the computation's intervals have now: together all keys, in their order."""
        if not self._intervals:
            await self.retried(self._find)
        return [interval_from_proto(one.keys) for one in self._intervals]

    async def read(self, within: KeyInterval = ALL_KEYS) -> AsyncGenerator[Sequence[wire.ListedState], None]:
        """The keys of a range that have a state or a timer, in their order, page by page.

        A page has about 4 MiB. Timers that are only in the store are not among those of the keys: a warning says how
        many there are.
        """
        place = _PlaceInRange(within.start)
        while place.start is not None and (within.end is None or place.start < within.end):
            ask = partial(self._page, KeyInterval(place.start, within.end), place)
            page = await self.retried(ask)
            if page:
                yield page

    async def _page(self, rest: KeyInterval, place: _PlaceInRange) -> Sequence[wire.ListedState]:
        try:
            if not self._intervals:
                await self._find()
            return await self._ask(rest, place)
        except RequestError as error:
            # The owner may have changed. The next attempt reads the intervals again, and goes on after the last key.
            self._intervals, place.token = (), ""
            await self._close_channels()
            if error.reason == "NOT_OWNER":
                raise with_successor(error) from error
            raise

    async def _ask(self, rest: KeyInterval, place: _PlaceInRange) -> Sequence[wire.ListedState]:
        interval = next(one for one in self._intervals if rest.start in interval_from_proto(one.keys))
        part = interval_from_proto(interval.keys).intersection(rest)
        assert part is not None
        request = wire.ListStatesRequest(journal=interval.journal, page_size=_PAGE_SIZE, page_token=place.token)
        request.keys.CopyFrom(common.KeyInterval(start=part.start, end=part.end))
        address = interval.owner.address
        async with calling(address):
            stub = StateServiceStub(self._channel_to(address))
            page = await stub.ListStates(request, timeout=_PAGE_SECONDS)
        for one in page.states:
            if one.state.error:
                raise self._unreadable(one)
        if page.spilled_timers and not place.token:
            text = "interval %s of %s has %d timers in the store alone: they are not among those of its keys"
            log.warning(text, part, self.computation, page.spilled_timers)
        place.token = page.next_page_token
        if not place.token:
            place.start = part.end
        elif page.states:
            place.start = page.states[-1].key + b"\0"
        return page.states

    def _unreadable(self, one: wire.ListedState) -> RequestError:
        return RequestError(
            FailureCode.DATA_LOSS,
            f"the state of key {one.key.decode()!r} of {self.computation} cannot be read: {one.state.error}",
            f"`millwheel key inspect {self.computation} KEY` shows the key",
            reason="STATE_UNREADABLE",
        )

    async def _find(self) -> None:
        """Read where the computation is, and what it is."""
        found = await self._control.get_topology(self._topology)
        incarnation = incarnation_of(found.topology, self._name)
        if self.incarnation not in ("", incarnation):
            raise RequestError(
                FailureCode.FAILED_PRECONDITION,
                f"topology {self._topology!r} was submitted again: the states of {self.computation} are others now",
                "read them from the beginning",
                reason="COMPUTATION_REPLACED",
            )
        self.incarnation = incarnation
        self.spec = next(one for one in found.topology.spec.computations if one.name == self._name)
        self._intervals = owned_intervals(found, self._name)


@dataclass(slots=True)
class _PlaceInRange:
    """How far a range is read.

    ``start``: the first key that is not read. None: all are. ``token``: of the interval's next page, if it is known.
    """

    start: bytes | None
    token: str = ""
