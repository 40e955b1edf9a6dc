"""A sink that posts each batch to a URL, under a key that stays when the batch comes again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from millwheel.connectors.handles import CALL_SECONDS
from millwheel.connectors.sink import Sink, SinkBatch, SinkShard, SinkWriter
from millwheel.errors import MillwheelError
from millwheel.model.time import Duration, seconds
from millwheel.sdk.errors import UsageError

if TYPE_CHECKING:
    from aiohttp import ClientResponse

__all__ = ["WebhookError", "webhook"]

T = TypeVar("T")

_OWN: Final = (
    *("connection", "content-type", "content-length", "content-encoding", "transfer-encoding", "host"),
    *("idempotency-key", "millwheel-sink", "millwheel-after"),
)
"""The headers that the sink sets."""
_FORMS: Final = {"lines": "application/x-ndjson", "array": "application/json", "object": "application/json"}
_SHOWN_BYTES: Final = 300
"""So much of a refusal is in the error."""
_READ_BYTES: Final = 64 << 10
"""So much of an answer is read."""
_LONGEST_PAUSE: Final = 3_600.0
"""A receiver may ask for an hour of peace at most."""
_TEN_SECONDS: Final = seconds(10)


class WebhookError(MillwheelError):
    """A receiver that does not take a batch, or cannot be reached. The batch comes again."""


def webhook(
    url: str | Callable[[], str],
    *,
    headers: Callable[[], Mapping[str, str]] | None = None,
    form: Literal["lines", "array", "object"] = "lines",
    deadline: Duration = _TEN_SECONDS,
) -> Sink[Any]:
    """A sink that posts each batch to a URL, with the header ``Idempotency-Key``.

    A batch comes again until the receiver answers with a status 2xx. It has the same key and the same body then. So a
    receiver that keeps the keys has each record once. One that does not may have some twice.

    For example, with a token that the worker reads from its environment::

        def token() -> dict[str, str]:
            return {"Authorization": f"Bearer {os.environ['HOOK_TOKEN']}"}

        alerts.to("alerts-hook", connectors.webhook("https://hooks.example/alerts", headers=token))

    Args:
        url: The address, or a function that returns it. The worker calls the function, so an address that is itself a
            secret need not be in the program.
        headers: Returns further headers. The worker calls it, and finds secrets in its environment or in files. It is
            called again after each failure, so a renewed secret is found.
        form: ``lines``: the values as JSON lines. ``array``: as one JSON array. ``object``: the value itself, for
            ``to(..., batch_records=1)``.
        deadline: How long a call may take, in microseconds: at most 50 seconds.

    Raises:
        UsageError: An argument cannot be used.
    """
    if not callable(url):
        _check_url(url)
    if form not in _FORMS:
        raise UsageError(f"webhook(...) has no form {form!r:.80}: it has {', '.join(_FORMS)}")
    if headers is not None and not callable(headers):
        raise UsageError(
            "webhook(...) takes a function that returns the headers, and no headers: a worker calls it, and finds "
            "secrets in its environment or in files, so that none is in the program"
        )
    if not isinstance(deadline, int) or not 0 < deadline <= seconds(CALL_SECONDS - 10):
        raise UsageError(
            f"webhook(...) takes a deadline of at most {CALL_SECONDS - 10:g} seconds, not {deadline!r:.80}"
        )
    return _Webhook(url, headers, form, deadline / 1e6)


def _check_url(url: object) -> str:
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts is not None and parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            if parts.username is not None or parts.password is not None:
                raise UsageError("webhook(...) takes no password in the URL: let `headers` return it as a header")
            return parts.geturl()
    except ValueError:  # for example, the port is no number
        pass
    # The text may be a secret.
    raise UsageError("webhook(...) takes a URL such as https://hooks.example/alerts")


def _check_headers(given: dict[str, str]) -> dict[str, str]:
    """Raise WebhookError for headers that cannot be sent. aiohttp would too, and its error may have the value."""
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise WebhookError(f"`headers` returned no text for the header {name!r:.80}: names and values are texts")
        if not (name + value).isprintable():
            raise WebhookError(
                f"the header {name!r:.80} has a line break or another control character: strip what a file ends with"
            )
        if name.lower() in _OWN:
            raise WebhookError(f"the header {name} is set by the sink: let `headers` leave it out")
    return given


@dataclass(frozen=True, slots=True)
class _Webhook(Sink[T], Generic[T]):
    url: str | Callable[[], str]
    headers: Callable[[], Mapping[str, str]] | None
    form: str
    deadline: float
    pauses: dict[tuple[str, int], float] = field(default_factory=dict, compare=False, repr=False)
    """By sink and shard: until when the receiver wants no call, by the clock of this process. A failed write closes
    its writer, so the writer cannot know it."""

    async def open_writer(self, place: SinkShard) -> SinkWriter[T]:
        url = _check_url(self.url() if callable(self.url) else self.url)
        return _WebhookWriter(self, place, url, _check_headers({} if self.headers is None else dict(self.headers())))


class _WebhookWriter(SinkWriter[T]):
    """Posts the batches of a shard.

    *Invariant (G1): all calls for a batch have one key, and one body.* Both follow from the batch, which was committed
    before. The next batch comes after an answer 2xx to this one. Who may break it: a former process, whose call for an
    older batch arrives late. Its key is known to a receiver that keeps the keys. And an update by which values have
    other fields in JSON, or another ``form``: it changes the body of a batch that was under way, and not its records.
    """

    def __init__(self, sink: _Webhook[T], place: SinkShard, url: str, headers: Mapping[str, str]) -> None:
        self._sink = sink
        self._place = place
        self._url = url
        self._headers = headers

    @property
    def _receiver(self) -> str:
        """The receiver, as errors name it: the path and the query may have secrets."""
        parts = urlsplit(self._url)
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{parts.hostname}{port}"

    async def write(self, batch: SinkBatch[T]) -> None:
        await self._keep_pause()
        # A late import: a program that only names a webhook does not wait for aiohttp.
        from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar

        body, headers = self._body(batch), self._headers_of(batch)
        # A connection for each call: one that was kept may be closed by the receiver in the moment of the next call.
        timeout = ClientTimeout(total=self._sink.deadline)
        try:
            async with (
                ClientSession(cookie_jar=DummyCookieJar(), timeout=timeout, auto_decompress=False) as session,
                session.post(self._url, data=body, headers=headers, allow_redirects=False) as response,
            ):
                await self._judge(response, batch)
        except TimeoutError as error:
            raise WebhookError(
                f"{self._receiver} has not answered within {self._sink.deadline:g} s to batch {batch.number}, which "
                "comes again with the same key"
            ) from error
        except (ClientError, OSError) as error:
            # Texts of aiohttp's errors may have the whole URL.
            why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise WebhookError(
                f"{self._receiver} cannot be reached ({why}); batch {batch.number} comes again with the same key"
            ) from None

    def _headers_of(self, batch: SinkBatch[T]) -> Mapping[str, str]:
        return {
            "User-Agent": "MillWheel",
            "Accept-Encoding": "identity",  # a part of the answer is shown, as text
            **self._headers,
            "Connection": "close",
            "Content-Type": _FORMS[self._sink.form],
            "Idempotency-Key": batch.id,
            "Millwheel-Sink": f"{quote(self._place.sink)}/{self._place.shard}",
            **({"Millwheel-After": batch.after} if batch.after else {}),
        }

    def _body(self, batch: SinkBatch[T]) -> bytes:
        try:
            values = [msgspec.json.encode(value) for value, _ in batch.records]
        except (TypeError, ValueError) as error:
            raise WebhookError(
                f"a record of batch {batch.number} has no form in JSON: {error}; map it before"
            ) from error
        if self._sink.form == "lines":
            return b"".join(value + b"\n" for value in values)
        if self._sink.form == "array":
            return b"[" + b",".join(values) + b"]"
        if len(values) > 1:
            raise WebhookError(
                f"batch {batch.number} has {len(values)} records, and a body of the form 'object' has one: write "
                "to(..., batch_records=1)"
            )
        return values[0]

    async def _judge(self, response: ClientResponse, batch: SinkBatch[T]) -> None:
        """Return if the receiver has the batch. Else raise, and remember when it wants the next call."""
        from aiohttp import ClientError

        text = b""
        with suppress(ClientError, OSError, TimeoutError):  # the status is there, and it alone counts
            while len(text) < _READ_BYTES and (part := await response.content.read(_READ_BYTES - len(text))):
                text += part
        if 200 <= response.status < 300:
            return
        pause = _pause(response.headers.get("Retry-After", ""))
        if pause:
            self._sink.pauses[self._place.sink, self._place.shard] = time.monotonic() + pause
        shown = text[:_SHOWN_BYTES].decode(errors="replace").strip()
        answered = f"{self._receiver} answered {response.status} to batch {batch.number}"
        said = f": {shown!r}" if shown else ""
        raise WebhookError(f"{answered}{said}; {_advice(response.status, pause)}")

    async def _keep_pause(self) -> None:
        """Wait until the receiver wants a call. If that is longer than a call may take, raise."""
        pauses, place = self._sink.pauses, (self._place.sink, self._place.shard)
        left = pauses.get(place, 0.0) - time.monotonic()
        if left > CALL_SECONDS - 5 - self._sink.deadline:
            raise WebhookError(f"{self._receiver} wants no call for {left:.0f} s (Retry-After)")
        if left > 0:
            await asyncio.sleep(left)
        pauses.pop(place, None)


def _pause(header: str) -> float:
    """The seconds that a header ``Retry-After`` asks for: a number, or a date. 0 if it says nothing."""
    try:
        wanted = float(header) if header.strip().isdigit() else _until(parsedate_to_datetime(header))
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return min(max(wanted, 0.0), _LONGEST_PAUSE)


def _until(date: datetime) -> float:
    return (date - datetime.now(UTC)).total_seconds()


def _advice(status: int, pause: float) -> str:
    again = f"it comes again after {pause:.0f} s" if pause else "it comes again"
    if status in (408, 409, 425, 429) or status >= 500:
        return f"{again}, with the same key"
    if 300 <= status < 400:
        return "a redirect is not followed: name the address that it leads to"
    if status in (401, 403):
        return f"correct what `headers` returns, or the rights there: {again}, with the headers of that time"
    return f"nothing is skipped, so the sink stands still until the receiver takes it: {again}, with the same key"
