"""Enrichment by another service: the country of each visitor, asked by HTTP.

The hook is asynchronous: other visitors go on while one waits. Its key is the address, and the answer is kept as its
state for an hour of the wall clock. If the service fails, the hook is undone and tried again; after ten attempts the
visit goes to ``dead-letters``.
"""

from __future__ import annotations

import asyncio
import os
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

import msgspec

import millwheel as mw

__all__ = ["Located", "Visit", "enrich"]


class Visit(msgspec.Struct, frozen=True):
    address: str
    page: str


class Located(msgspec.Struct, frozen=True):
    """A visit with its country."""

    visit: Visit
    country: str


def ask(address: str) -> str:
    """The country of an address. The service answers with its name as text."""
    service = os.environ.get("COUNTRIES", "http://127.0.0.1:8080")
    try:
        with urlopen(f"{service}/{quote(address)}", timeout=5) as answer:
            return str(answer.read(), "utf-8")
    except HTTPError as error:
        error.close()
        raise


class Locate(mw.Computation[Visit, str | None]):
    async def process_record(self, ctx: mw.Context[str | None], record: mw.Record[Visit]) -> None:
        if ctx.state is None:
            ctx.state = await asyncio.to_thread(ask, record.value.address)
            ctx.set_timer(mw.Timestamp(ctx.now + mw.hours(1)), domain=mw.TimeDomain.PROCESSING_TIME)
        ctx.produce("located", Located(record.value, ctx.state))

    def process_timer(self, ctx: mw.Context[str | None], timer: mw.Timer) -> None:
        del ctx.state


enrich = mw.Topology("enrich")
visits = enrich.source("visits", Visit).key_by("address")
visits.process("locate", Locate, {"located": Located}, on_failure=mw.dead_letter(after=10))
