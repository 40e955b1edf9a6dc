"""Enrichment by another service: the country of each visitor, asked by HTTP.

``enrich`` calls a function for each visit: at most 16 calls run at a time, and each may take five seconds. Visits of
an address keep their order. A call that fails is made again. After ten attempts the visit goes to ``dead-letters``.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

import msgspec

import millwheel as mw

__all__ = ["Located", "Visit", "enrich"]

CALLS = 16
_THREADS = ThreadPoolExecutor(CALLS, "countries")
"""A thread for each call. ``asyncio.to_thread`` has only four more than there are processors, so calls would wait."""


class Visit(msgspec.Struct, frozen=True):
    """Somebody visits a page."""

    address: str
    page: str


class Located(msgspec.Struct, frozen=True):
    """A visit with its country."""

    visit: Visit
    country: str


async def locate(visit: Visit) -> Located:
    """Ask in a thread. With an asynchronous client of HTTP there would be none."""
    return Located(visit, await asyncio.wrap_future(_THREADS.submit(ask, visit.address)))


def ask(address: str) -> str:
    """The country of an address. The service answers with its name as text."""
    service = os.environ.get("COUNTRIES", "http://127.0.0.1:8080")
    try:
        with urlopen(f"{service}/{quote(address)}", timeout=5) as answer:
            return str(answer.read(), "utf-8")
    except HTTPError as error:
        error.close()
        raise


enrich = mw.Topology("enrich")
visits = enrich.source("visits", Visit).key_by("address")
visits.enrich("located", locate, Located, concurrency=CALLS, timeout=mw.seconds(5), on_failure=mw.dead_letter(after=10))
