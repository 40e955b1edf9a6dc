"""Tells the authority which injector processes to wait for, whenever that has changed (sections 5.2, 7.2).

Before the first process of a stream is accepted it is told by the opening itself. From then on it is told here: an
update takes a process that will not come back out of the set, and nobody need open anything for the watermark to go on.
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

_AGAIN: Final = 2.0
"""Seconds after which it is looked again though nothing is heard of, and told again what could not be told."""

_log = logging.getLogger(__name__)


class Expectations:
    """What one term has told. It begins by telling everything: it is not known what the term before got to tell."""

    def __init__(self, term: Term, observer: Observer) -> None:
        self._term = term
        self._observer = observer
        self._told: dict[str, tuple[str, ...]] = {}

    async def run(self) -> None:
        """Go on until cancelled, or the term is over."""
        await self._term.ready()
        while not self._term.is_over:
            try:
                await self.tell()
            except DamagedValueError as error:
                _log.debug("nobody is told which injectors to expect: %s", error)
            except Exception:
                _log.exception("the authority could not be told which injectors to expect; trying again")
            with suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN):
                    await self._term.changed()

    async def tell(self) -> None:
        """Tell what has changed of the streams that were opened."""
        known = self._term.catalog
        opened, streams = {stream for stream, _ in known.injectors}, known.streams()
        wanted = {name: tuple(sorted(streams[name].expected_injectors)) for name in sorted(opened & streams.keys())}
        self._told = {stream: processes for stream, processes in self._told.items() if stream in wanted}
        for stream, processes in wanted.items():
            if self._told.get(stream) == processes:
                continue
            try:
                await self._observer.expect(known, stream)
            except RequestError as error:
                _log.info("the authority is told later which injectors of %s to expect: %s", stream, error)
            else:
                self._told[stream] = processes
