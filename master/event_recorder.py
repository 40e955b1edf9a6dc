"""The driver of :class:`EventWatch`: it looks once a second while this master leads, and has events recorded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from millwheel.coordination.contract import DamagedValueError
from millwheel.master.event_watch import EventWatch
from millwheel.master.hook_failures import all_reported, hook_failures
from millwheel.master.load_book import LoadBook
from millwheel.master.messages import RecordEvent
from millwheel.master.term import Term
from millwheel.rpc.clock import wall_now
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["EventRecorder"]

_EVERY_SECONDS: Final = 1.0
_log = logging.getLogger(__name__)


class EventRecorder:
    """Records the beginning of a term, and what :class:`EventWatch` finds in it."""

    def __init__(self, term: Term, address: str, book: Callable[[], LoadBook]) -> None:
        """``address``: of the master that leads. ``book``: returns the workers' load reports."""
        self._term = term
        self._address = address
        self._book = book
        self._watch: EventWatch | None = None

    @property
    def left(self) -> Mapping[str, str]:
        """The workers that were stopped in order and are not back, by name, each with its address."""
        return {} if self._watch is None else dict(self._watch.left)

    async def run(self) -> None:
        """Run until cancelled."""
        await self._term.ready()
        watch = self._watch = EventWatch(self._term.catalog.events)
        text = f"the master at {self._address} leads, term {self._term.number}"
        await self._record(catalog.EventRecord(kind="master.elected", actor="master", subject=self._address, text=text))
        while True:
            try:
                known, book = self._term.catalog, self._book()
                heard = partial(all_reported, known, book)
                failing = hook_failures(known, book, wall_now())
                for event in watch.observe(known.workers, failing, heard, known.masters, known.departures):
                    await self._record(event)
            except DamagedValueError as error:
                _log.debug("no events are looked for: %s", error)
            await asyncio.sleep(_EVERY_SECONDS)

    async def _record(self, event: catalog.EventRecord) -> None:
        try:
            await self._term.ask(RecordEvent(event))
        except RequestError as error:
            # The event describes the past, and changes nothing. It is not worth a second attempt.
            _log.info("event not recorded: %s: %s", event.text, error)
