"""Notifies the authority of the expected injector processes whenever they change (sections 5.2, 7.2).

The opening of an injector itself notifies the authority before the first process of a stream is accepted. Later
changes are published here. An example is an update that removes a process that will not return: the watermark then
advances without a call from any injector.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from millwheel.coordination.contract import DamagedValueError
from millwheel.master.observer import Observer
from millwheel.master.term import Term
from millwheel.rpc.failures import RequestError

__all__ = ["Expectations"]

_RETRY_SECONDS: Final = 2.0
"""Seconds until the next check without a change, and until a failed notification is repeated."""

_log = logging.getLogger(__name__)


class Expectations:
    """The expected sets that one term has published.

    A term starts by publishing all of them, because it does not know what the previous term published.
    """

    def __init__(self, term: Term, observer: Observer) -> None:
        self._term = term
        self._observer = observer
        self._sent: dict[str, tuple[str, ...]] = {}

    async def run(self) -> None:
        """Run until cancelled, or until the term is over."""
        await self._term.ready()
        while not self._term.is_over:
            try:
                await self.notify()
            except DamagedValueError as error:
                _log.debug("no authority shard is notified which injectors to expect: %s", error)
            except Exception:
                _log.exception("the authority could not be notified which injectors to expect; trying again")
            with suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_SECONDS):
                    await self._term.changed()

    async def notify(self) -> None:
        """Publish the changed expected sets of opened streams."""
        known = self._term.catalog
        opened, streams = {stream for stream, _ in known.injectors}, known.streams()
        wanted = {name: tuple(sorted(streams[name].expected_injectors)) for name in sorted(opened & streams.keys())}
        self._sent = {stream: processes for stream, processes in self._sent.items() if stream in wanted}
        for stream, processes in wanted.items():
            if self._sent.get(stream) == processes:
                continue
            try:
                await self._observer.expect(known, stream)
            except RequestError as error:
                _log.info("the authority is notified later which injectors of %s to expect: %s", stream, error)
            else:
                self._sent[stream] = processes
