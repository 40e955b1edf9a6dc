"""A bucket that speaks S3, in this process: real requests, answers that get lost, and no account.

``MILLWHEEL_TEST_S3=http://HOST:PORT`` tests another server of S3 that has a bucket ``shop``.
"""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from functools import cache
from threading import Event, Thread
from xml.sax.saxutils import escape

import pytest
from aiohttp import web

BUCKET = "shop"


@dataclass
class Bucket:
    """The objects of a bucket by key, and what goes wrong with it."""

    objects: dict[str, tuple[bytes, datetime]] = field(default_factory=dict)
    lost: int = 0
    """How many of the next writes take effect, and are answered by an error."""
    refuses: bool = False
    """Whether requests are answered as those of an unknown account are."""
    held: Event = field(default_factory=Event)
    """Whether a write waits."""
    _held: str = ""
    _go_on: Event = field(default_factory=Event)
    _takes: bool = True

    def empty(self) -> None:
        """Have no objects, and nothing that goes wrong."""
        self.objects.clear()
        self.lost, self.refuses, self._held = 0, False, ""

    def hold(self, part: str) -> None:
        """Let the next write of a key with this part wait."""
        self._held = part
        self.held.clear()
        self._go_on.clear()

    def release(self, *, takes: bool = True) -> None:
        """Let it go on. ``takes``: whether it takes effect."""
        self._takes = takes
        self._go_on.set()

    def tag(self, key: str) -> str:
        return f'"{hashlib.md5(self.objects[key][0]).hexdigest()}"'

    async def answer(self, request: web.Request) -> web.StreamResponse:
        name, _, key = request.match_info["path"].partition("/")
        if name != BUCKET:
            return web.Response(status=404)
        if self.refuses:
            text = "<Error><Code>InvalidAccessKeyId</Code><Message>The account is not known.</Message></Error>"
            return web.Response(status=403, text=text, content_type="application/xml")
        if request.method == "PUT":
            return await self._put(key, request)
        return self._list(request) if not key else self._get(key, request)

    async def _put(self, key: str, request: web.Request) -> web.Response:
        if self._held and self._held in key:
            self._held = ""
            self.held.set()
            await asyncio.to_thread(self._go_on.wait)
            if not self._takes:
                return web.Response(status=500)
        there = key in self.objects
        if request.headers.get("If-None-Match") == "*" and there:
            return web.Response(status=412)
        if (match := request.headers.get("If-Match")) is not None and (not there or match != self.tag(key)):
            return web.Response(status=412 if there else 404)
        self.objects[key] = await request.read(), datetime.now(UTC)
        if self.lost:
            self.lost -= 1
            return web.Response(status=500)
        return web.Response(headers={"ETag": self.tag(key)})

    def _get(self, key: str, request: web.Request) -> web.Response:
        if key not in self.objects:
            return web.Response(status=404)
        content, changed = self.objects[key]
        headers = {"ETag": self.tag(key), "Last-Modified": format_datetime(changed, usegmt=True)}
        asked = request.headers.get("Range", "").removeprefix("bytes=")
        if not asked:
            return web.Response(body=content, headers=headers)
        first, last = (int(one) for one in asked.split("-"))
        last = min(last, len(content) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        return web.Response(status=206, body=content[first : last + 1], headers=headers)

    def _list(self, request: web.Request) -> web.Response:
        query = request.query
        prefix, after = query.get("prefix", ""), query.get("continuation-token", query.get("start-after", ""))
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
        page = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{self.objects[key][1].isoformat()}</LastModified>"
            f"<ETag>{escape(self.tag(key))}</ETag><Size>{len(self.objects[key][0])}</Size></Contents>"
            for key in keys[:2]  # so that there is a next page
        )
        more = f"<NextContinuationToken>{escape(keys[1])}</NextContinuationToken>" if len(keys) > 2 else ""
        text = f"<ListBucketResult><IsTruncated>{str(bool(more)).lower()}</IsTruncated>{more}{page}</ListBucketResult>"
        return web.Response(text=text, content_type="application/xml")


@contextmanager
def serving(bucket: Bucket) -> Iterator[str]:
    """Serve the bucket. Yields the address."""
    ready, addresses = Event(), list[str]()
    loop, ended = asyncio.new_event_loop(), asyncio.Event()

    async def run() -> None:
        application = web.Application(client_max_size=1 << 30)
        application.router.add_route("*", "/{path:.*}", bucket.answer)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        addresses.append(f"http://{host}:{port}")
        ready.set()
        await ended.wait()
        await runner.cleanup()

    thread = Thread(target=loop.run_until_complete, args=(run(),), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield addresses[0]
    finally:
        bucket.release()
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


@contextmanager
def environment(address: str) -> Iterator[None]:
    """The environment in which a bucket of S3 is at an address."""
    settings = {
        "AWS_ENDPOINT": address,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "eu-north-1",
        "AWS_ACCESS_KEY_ID": "shop",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        yield


@contextmanager
def reached_bucket() -> Iterator[Bucket]:
    """A bucket that this process reaches by the environment, or that of another server. It has no objects yet."""
    if address := other_server():
        with environment(address):
            yield Bucket()
        return
    bucket, address = _served()
    bucket.empty()
    with environment(address):
        yield bucket


@cache
def _served() -> tuple[Bucket, str]:
    """The bucket of this process: its clients know a bucket by its name, and keep the address."""
    bucket, stack = Bucket(), ExitStack()
    atexit.register(stack.close)
    return bucket, stack.enter_context(serving(bucket))


def other_server() -> str:
    """The address of another server, if there is one."""
    return os.environ.get("MILLWHEEL_TEST_S3", "")
