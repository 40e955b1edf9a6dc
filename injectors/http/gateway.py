"""What requests over HTTP become: records that are sent together, and a promise that follows the clock (section 5.2).

A request is answered when all consumers have ACKed its records. So it may be repeated until it has an answer: the ids
of its records depend on the request alone. They are the same at each gateway that names the same source.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from millwheel.client.injector import (
    ForgottenIdsError,
    Injector,
    InjectorError,
    RefusedRecordError,
    SentRecords,
    StreamDrainingError,
)
from millwheel.client.injector.likelihood import OLDEST_USUAL_US
from millwheel.errors import Problem
from millwheel.injectors.http.bodies import BodyForm, BodyReader, ReadBody, read_key, read_time, refused_records
from millwheel.injectors.http.refusals import HttpRefusal
from millwheel.model.time import Duration, seconds
from millwheel.rpc.clock import wall_now

__all__ = ["SOURCE", "TIME_HEADER", "HttpGateway", "HttpSettings"]

log = logging.getLogger("millwheel.injectors")

SOURCE: Final = "http"
"""The source of all records by default. So gateways of a stream know each other's requests."""
TIME_HEADER: Final = "Millwheel-Event-Time"
_PROMISE_SECONDS: Final = 0.2
_MAX_KEYS: Final = 10_000
"""So many keys are kept with a hash of their bodies: some megabytes."""
_RETRY_SECONDS: Final = 1
_FIVE_SECONDS: Final = seconds(5)
_AWAY_SECONDS: Final = 5.0
"""A change of owners takes less."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """How a gateway takes requests.

    Attributes:
        reader: How records are read from bodies.
        key_header: The header with the idempotency key of a request.
        keyless: Whether a request without a key is taken, although it counts as new each time.
        allowed_delay: How much older than the clock a record may be without being late, in microseconds.
        idle_after: After so long without a request, in microseconds, the low watermark does not wait for this process.
            None: it follows the clock, also without requests.
        answer_seconds: How long a request waits for room and for the ACKs of its records.
    """

    reader: BodyReader = field(default_factory=BodyReader)
    key_header: str = "Idempotency-Key"
    keyless: bool = False
    allowed_delay: Duration = _FIVE_SECONDS
    idle_after: Duration | None = None
    answer_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class GivenHeaders:
    """The headers of a request that say something about its records. Empty: there is no such header."""

    key: str = ""
    time: str = ""


class HttpGateway:
    """Sends the records of requests by an open :class:`Injector`. Nothing else may use that injector."""

    def __init__(self, injector: Injector, settings: HttpSettings) -> None:
        """
        Args:
            injector: The injector, which must be open.
            settings: How requests are taken.
        """
        self._injector = injector
        self._settings = settings
        self._held: dict[object, int] = {}
        """By request that is not accepted yet: the least timestamp of its records."""
        self._keys: OrderedDict[str, bytes] = OrderedDict()
        """The newest keys, with a hash of the body that each of them came with."""
        self._claims: dict[object, tuple[str, bytes]] = {}
        """By request whose records are not accepted yet: its key, and the hash of its body."""
        self._last_request = wall_now()
        self._idle = False
        self._away_since: float | None = None
        """Since when no consumer of the stream can be reached, by the loop's clock. The wall clock may be set."""
        self._away = False
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def stream(self) -> str:
        """The full name of the stream."""
        return self._injector.stream

    @property
    def works(self) -> bool:
        """Whether the injector works. If not, the gateway ends."""
        return not self._failed.done()

    @property
    def away(self) -> bool:
        """Whether no request can be answered now, for five seconds or more. The log says why."""
        return self._away

    async def take(self, body: bytes, form: BodyForm, given: GivenHeaders) -> int:
        """Take the records of a request. Returns their number, once each of them has taken effect.

        Args:
            body: The body, unpacked.
            form: How records stand in it.
            given: The headers.

        Raises:
            HttpRefusal: No record was sent; or, with the status 504, the records have no ACK yet. They may take effect
                later, and the request may be repeated.
        """
        now, reader = wall_now(), self._settings.reader
        key = self._key(given.key)
        at = self._time(given.time, now)
        read = reader.read(body, form, key, now if at is None else at, now)
        if not read.values:
            return 0
        digest = blake2b(body, digest_size=16).digest()
        sent = None
        try:
            async with asyncio.timeout(self._settings.answer_seconds) as limit:
                with self._claimed(key, digest):
                    sent = await self._send(read, again=at is not None or reader.timestamp is not None)
                    self._remember(key, digest)
                await self._injector.until_acked(sent)
        except TimeoutError:
            if not limit.expired():
                raise
            raise self._too_slow(sent) from None
        except InjectorError as error:
            self._note(error)
            raise HttpRefusal(
                503,
                "INJECTOR_FAILED",
                f"the gateway cannot send: {error}",
                "send the request again, with the same key, to another gateway or when this one is back",
                retry_after=_RETRY_SECONDS,
            ) from error
        return len(read.values)

    async def _send(self, read: ReadBody, *, again: bool) -> SentRecords:
        self._last_request, self._idle = wall_now(), False
        try:
            with self._holding(min(read.timestamps)):
                return await self._injector.send_together(read.values, read.timestamps, ids=read.ids, again=again)
        except RefusedRecordError as error:
            raise refused_records([Problem(read.places[error.index], str(error.why))]) from error
        except ForgottenIdsError as error:
            raise HttpRefusal(
                410,
                "IDS_FORGOTTEN",
                f"{read.places[error.index]}: {error}",
                "it is too late to repeat this request, or to send it for the first time; id_slack of the stream says "
                "how late it may be",
            ) from error

    def _key(self, header: str) -> str:
        settings = self._settings
        key = read_key(header, settings.key_header)
        if not key and not settings.reader.id_field and not settings.keyless:
            raise HttpRefusal(
                400,
                "KEY_MISSING",
                f"the request has no header {settings.key_header}, so its records would come twice if it is repeated",
                "send a key that is new for each request and stays when it is repeated, such as a UUID; or start the "
                "gateway with --id FIELD or --keyless",
            )
        return key

    def _time(self, header: str, now: int) -> int | None:
        """The event time of all records, if a header has it."""
        reader = self._settings.reader
        if not header:
            return None
        if reader.timestamp is not None:
            raise HttpRefusal(
                400,
                "TIME_MALFORMED",
                f"the records have their times in the field {reader.timestamp.path!r}",
                f"leave the header {TIME_HEADER} out",
            )
        return read_time(header, TIME_HEADER, now, any_timestamp=reader.any_timestamp)

    # Keys. Records of another body would count as known, so they would be lost without a word.

    @contextmanager
    def _claimed(self, key: str, digest: bytes) -> Iterator[None]:
        """Refuse other bodies under the key, until the records are accepted. Then the key is remembered."""
        if self._settings.reader.id_field:  # then the ids of records count, and not the key
            yield
            return
        self._refuse_reused(key, digest)
        request = object()
        self._claims[request] = key, digest
        try:
            yield
        finally:
            del self._claims[request]

    def _refuse_reused(self, key: str, digest: bytes) -> None:
        claimed = any(one == key and body != digest for one, body in self._claims.values())
        if key and (claimed or self._keys.get(key, digest) != digest):
            raise HttpRefusal(
                409,
                "KEY_REUSED",
                f"the key {key!r} came before, with another body",
                "send each request under a key of its own, and repeat it with the same body",
            )

    def _remember(self, key: str, digest: bytes) -> None:
        if key and not self._settings.reader.id_field:
            self._keys[key] = digest
            self._keys.move_to_end(key)
            if len(self._keys) > _MAX_KEYS:
                self._keys.popitem(last=False)

    def _too_slow(self, sent: SentRecords | None) -> HttpRefusal:
        stall = self._injector.stall
        why = f": {stall}" if stall else ""
        waited = f"within {self._settings.answer_seconds:g} s"
        if sent is None:
            return HttpRefusal(
                429,
                "STREAM_BEHIND",
                f"the stream took no record of the request {waited}{why}",
                "send it again later",
                retry_after=_RETRY_SECONDS,
            )
        return HttpRefusal(
            504,
            "NOT_ACKED",
            f"not every record has taken effect {waited}{why}",
            "send the request again with the same key: no record counts twice",
            retry_after=_RETRY_SECONDS,
        )

    # The promise.

    @contextmanager
    def _holding(self, oldest: int) -> Iterator[None]:
        """Promise nothing above ``oldest`` while the records wait for room. So waiting makes none of them late."""
        request = object()
        self._held[request] = oldest
        try:
            yield
        finally:
            del self._held[request]

    async def run(self) -> None:
        """Promise, again and again, that later records are not older than the clock less ``allowed_delay``.

        Runs until it is cancelled.

        Raises:
            InjectorError: The injector has stopped.
        """
        while not self._failed.done():
            self._look()
            try:
                await self._promise()
            except InjectorError as error:
                self._note(error)
            await asyncio.wait([self._failed], timeout=_PROMISE_SECONDS)
        self._failed.result()

    def _look(self) -> None:
        """See whether the consumers of the stream can be reached. They cannot for a moment while owners change."""
        why, now = self._injector.unreachable, asyncio.get_running_loop().time()
        if not why:
            if self._away:
                log.warning("the gateway of stream %s takes requests again", self.stream)
            self._away, self._away_since = False, None
        elif self._away_since is None:
            self._away_since = now
        elif not self._away and now - self._away_since >= _AWAY_SECONDS:
            log.warning("the gateway of stream %s cannot take requests: %s", self.stream, why)
            self._away = True

    async def _promise(self) -> None:
        now, settings = wall_now(), self._settings
        quiet = now - self._last_request
        if settings.idle_after is not None and quiet >= settings.idle_after and not self._held:
            if not self._idle and not self._injector.unacked:
                self._idle = True
                await self._injector.idle()
            return
        promised = min([now - settings.allowed_delay, *self._held.values()])
        # A large delay may give a time before the oldest plausible one.
        least = OLDEST_USUAL_US if not settings.reader.any_timestamp else promised
        await self._injector.advance(max(promised, least))

    def _note(self, error: InjectorError) -> None:
        """A call of the injector has failed. The gateway ends if the injector has: another one has to be opened."""
        ended = isinstance(error, StreamDrainingError) or self._injector.failure is not None
        if ended and not self._failed.done():
            self._failed.set_exception(error)
            self._failed.exception()  # nothing else looks at it if run() is cancelled first
        elif not ended:
            log.warning("the gateway of stream %s: %s", self.stream, error)
