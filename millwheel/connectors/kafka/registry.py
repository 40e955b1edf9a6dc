"""How a worker asks a schema registry: address, a file of settings, and errors that say what to do."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from millwheel.connectors.kafka.clients import KafkaError, read_settings
from millwheel.sdk.errors import UsageError

if TYPE_CHECKING:
    from ssl import SSLContext

    from aiohttp import ClientResponse

__all__ = ["ANSWER_SECONDS", "RegisteredSchema", "RegistryAccess", "UnknownSchemaError"]

T = TypeVar("T")

ANSWER_SECONDS: Final = 10.0
"""How long a call waits for the registry. It ends before the limit of a connector's call, and says why."""
_MAX_BYTES: Final = 4 << 20
"""The most bytes of an answer."""
_SHOWN: Final = 1_000
"""So many characters of a refusal are in the error."""
_COMPATIBLE: Final = {
    "PROTOBUF": "Keep the numbers and types of fields, and the names of messages",
    "AVRO": "Give new fields defaults, keep the name of the record",
}
"""By type of schema: what makes the next one compatible."""
_NAMES: Final = frozenset({
    "url", "basic.auth.user.info", "bearer.auth.token", "ssl.ca.location", "ssl.certificate.location",
    "ssl.key.location", "ssl.key.password",
})  # fmt: skip
"""The properties of the file. They have the names of Confluent's clients."""
_NO_SUBJECT, _NO_SCHEMA = 40401, 40403
"""Codes in answers."""
_UNREADABLE: Final = (ValueError, RecursionError)
"""What reading an answer may raise: it is no JSON, another one than it should be, no UTF-8, or too deep."""


class UnknownSchemaError(ValueError):
    """The server that was asked does not have a schema. Another server of the registry may have it already."""


class RegisteredSchema(msgspec.Struct, frozen=True):
    """A schema as a registry has it."""

    schema: str
    kind: str = msgspec.field(default="AVRO", name="schemaType")
    references: list[Any] | None = None


class _Id(msgspec.Struct):
    """The answer to a schema."""

    id: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
    """A record has it in four bytes."""


class _Version(msgspec.Struct):
    """The answer to a schema that is looked up."""

    version: int


_SCHEMAS: Final = msgspec.json.Decoder(RegisteredSchema)
_IDS: Final = msgspec.json.Decoder(_Id)
_VERSIONS: Final = msgspec.json.Decoder(_Version)
"""Made here, because threads decode answers: see ``millwheel.sdk.known_types``."""


class _Answer(msgspec.Struct, frozen=True):
    """What the registry answered."""

    status: int
    body: bytes

    def refusal(self) -> tuple[int, str]:
        """The code and the text of a refusal. The code is 0 if the answer is not that of a schema registry."""
        try:
            said = msgspec.json.decode(self.body)
            return int(said["error_code"]), str(said.get("message", ""))[:_SHOWN]
        except (*_UNREADABLE, TypeError, KeyError, AttributeError, OverflowError):
            return 0, self.body[:_SHOWN].decode(errors="replace").strip()


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """What a program says of a registry, and the calls to it. Passwords are in the file, which the worker reads.

    Attributes:
        url: Its address, without user and password. None: the file has it.
        settings: The path of a file of properties.
    """

    url: str | None = None
    settings: str | None = None

    def __post_init__(self) -> None:
        if self.url is not None:
            _check_url(self.url)
        elif not self.settings:
            raise UsageError('a schema registry needs url="http://HOST:PORT", or a file of settings that has url')

    def schema(self, number: int) -> RegisteredSchema:
        """The schema with an id. It blocks for up to ``ANSWER_SECONDS``.

        Raises:
            UnknownSchemaError: There is none.
            KafkaError: The registry cannot be asked.
        """
        answer = self._call("GET", f"/schemas/ids/{number}")
        if answer.status == 404 and answer.refusal()[0] == _NO_SCHEMA:
            raise UnknownSchemaError(f"the schema registry has no schema with the id {number}")
        return self._understood(answer, f"schema {number}", _SCHEMAS)

    def id_of(self, subject: str, schema: RegisteredSchema, *, register: bool) -> int:
        """The id of a schema of a subject. It blocks for up to ``ANSWER_SECONDS``.

        Args:
            subject: The name under which the registry has the versions of a schema.
            schema: The schema.
            register: Whether to register it, if it is not there.

        Raises:
            KafkaError: The registry refuses the schema, does not have it, or cannot be asked.
        """
        path = f"/subjects/{quote(subject, safe='')}"
        answer = self._call("POST", f"{path}/versions" if register else path, _body_of(schema))
        what = f"subject {subject!r}"
        code, text = (0, "") if answer.status == 200 else answer.refusal()
        if answer.status == 409:
            raise KafkaError(
                f"{what}: its former versions are not compatible with the schema of the sink, so nothing is written: "
                f"{text}. {_COMPATIBLE.get(schema.kind, _COMPATIBLE['AVRO'])}, or give the sink another subject="
            )
        if code in (_NO_SUBJECT, _NO_SCHEMA):
            raise KafkaError(
                f"{what}: the schema registry does not have the schema of the sink: {text}. Register it, or let the "
                "sink do so by register=True"
            )
        return self._understood(answer, what, _IDS).id

    def version_of(self, subject: str, schema: RegisteredSchema, *, register: bool) -> int:
        """The version of a schema within its subject, by which others refer to it. See :meth:`id_of`.

        It blocks for up to twice ``ANSWER_SECONDS``.

        Raises:
            KafkaError: The registry refuses the schema, does not have it, or cannot be asked.
        """
        self.id_of(subject, schema, register=register)
        answer = self._call("POST", f"/subjects/{quote(subject, safe='')}", _body_of(schema))
        if answer.status == 404 and answer.refusal()[0] in (_NO_SUBJECT, _NO_SCHEMA):
            raise KafkaError(
                f"subject {subject!r}: {self._place()} does not have the schema yet that another server of the "
                "registry has taken; it is asked again, and nothing is lost"
            )
        return self._understood(answer, f"subject {subject!r}", _VERSIONS).version

    def _understood(self, answer: _Answer, what: str, decoder: msgspec.json.Decoder[T]) -> T:
        """What the answer says. Raises KafkaError for any other answer than that."""
        if answer.status == 200:
            try:
                return decoder.decode(answer.body)
            except _UNREADABLE as error:
                raise KafkaError(f"{what}: {self._place()} does not answer as a schema registry: {error}") from error
        _, text = answer.refusal()
        raise KafkaError(f"{what}: {self._place()} answered {answer.status}: {text or 'no text'}; {_advice(answer)}")

    def _given(self) -> dict[str, str]:
        """The properties, with those of the program."""
        given = {} if self.settings is None else read_settings(Path(self.settings))
        if unknown := sorted(given.keys() - _NAMES):
            raise KafkaError(
                f"{self.settings} sets {unknown[0]}, which is not known of a schema registry: it may have "
                f"{', '.join(sorted(_NAMES))}"
            )
        if self.url is not None:
            given["url"] = self.url
        if "url" not in given:
            raise KafkaError(f"{self.settings} has no url: add it, or give url= in the program")
        try:
            _check_url(given["url"])
        except UsageError as error:
            raise KafkaError(f"{self.settings}: {error}") from None
        return given

    def _place(self) -> str:
        """The registry, as errors name it."""
        return f"the schema registry {self._given()['url']}"

    def _call(self, method: str, path: str, body: Mapping[str, str] | None = None) -> _Answer:
        """Ask, on this thread. Raises KafkaError if no answer comes.

        *Invariant (G1): it raises no error of any other class.* The caller would hold the record for a bad one. For
        example, the process may have no descriptor left for an event loop.
        """
        if _in_event_loop():
            raise UsageError(
                "a format of a schema registry asks it over the network, and would stop everything else on this thread "
                "meanwhile: use it in decode= of kafka.source or value= of kafka.sink, which have threads for that"
            )
        try:
            with asyncio.Runner() as runner:
                runner.get_loop().set_default_executor(_Lookups(1))
                return runner.run(self._ask(method, path, body))
        except KafkaError:
            raise
        except Exception as error:
            raise KafkaError(
                f"the schema registry {self.url or f'of {self.settings}'} cannot be asked ({_reason(error)}); "
                "it is asked again, and nothing is lost"
            ) from error

    async def _ask(self, method: str, path: str, body: Mapping[str, str] | None) -> _Answer:
        # A late import: a program that only names a registry does not wait for aiohttp.
        from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar

        given = self._given()
        timeout = ClientTimeout(total=ANSWER_SECONDS)
        try:
            async with (
                ClientSession(cookie_jar=DummyCookieJar(), timeout=timeout, headers=_headers(given)) as session,
                session.request(
                    method,
                    given["url"].rstrip("/") + path,
                    json=body,
                    headers={} if body is None else {"Content-Type": "application/vnd.schemaregistry.v1+json"},
                    ssl=_tls(given) or True,
                    allow_redirects=False,
                ) as response,
            ):
                return _Answer(response.status, await _body(response))
        except TimeoutError as error:
            raise KafkaError(
                f"{self._place()} has not answered within {ANSWER_SECONDS:g} s; it is asked again, and nothing is lost"
            ) from error
        except (ClientError, OSError) as error:
            raise KafkaError(
                f"{self._place()} cannot be reached ({_reason(error)}); it is asked again, and nothing is lost"
            ) from error


class _Lookups(ThreadPoolExecutor):
    """The thread on which a host's address is looked up. No call waits for its end: a lookup may take a minute."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=cancel_futures)


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _reason(error: Exception) -> str:
    """What is wrong, in few words. Texts of other errors may show what is secret."""
    return error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not parts.query:
            parts.hostname.encode("idna")  # as the lookup of its address does
            if "@" in parts.netloc:
                raise UsageError(
                    "a schema registry takes no user or password in its URL: write "
                    "basic.auth.user.info=USER:${PASSWORD} to a file on the workers, and name it by settings="
                )
            return
    except ValueError:  # for example, the port is no number, or a part of the host's name is empty
        pass
    raise UsageError("a schema registry needs a URL such as http://HOST:8081, without user, password and query")


def _headers(given: Mapping[str, str]) -> dict[str, str]:
    """The headers of each call, with what shows who asks."""
    headers = {"User-Agent": "MillWheel", "Accept": "application/vnd.schemaregistry.v1+json, application/json"}
    if (token := given.get("bearer.auth.token")) is not None:
        if not token.isascii() or not token.isprintable():  # aiohttp's error would show it
            raise KafkaError("bearer.auth.token of the schema registry has a character that no token has")
        return {**headers, "Authorization": f"Bearer {token}"}
    if (info := given.get("basic.auth.user.info")) is None:
        return headers
    if ":" not in info:  # the text may be the password
        raise KafkaError("basic.auth.user.info of the schema registry has no colon: write USER:PASSWORD")
    return {**headers, "Authorization": f"Basic {b64encode(info.encode()).decode()}"}


def _tls(given: Mapping[str, str]) -> SSLContext | None:
    """What connections are checked with. None: as the system does."""
    files = {name: given.get(name) for name in ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")}
    if not any(files.values()):
        return None
    import ssl

    authority, certificate, key = files.values()
    try:
        context = ssl.create_default_context(cafile=authority)
        if certificate is not None:
            context.load_cert_chain(certificate, key, given.get("ssl.key.password", ""))  # None would ask the terminal
    except OSError as error:
        named = ", ".join(f"{name}={path}" for name, path in files.items() if path)
        raise KafkaError(f"files for the schema registry cannot be used ({named}): {error}") from error
    return context


async def _body(response: ClientResponse) -> bytes:
    text = b""
    while part := await response.content.read(_MAX_BYTES + 1 - len(text)):
        text += part
        if len(text) > _MAX_BYTES:
            raise KafkaError(f"the schema registry answered with more than {_MAX_BYTES:,} bytes")
    return text


def _advice(answer: _Answer) -> str:
    """What to do about a refusal."""
    again = "it is asked again, and nothing is lost"
    if answer.status in (401, 403):
        return f"correct basic.auth.user.info or bearer.auth.token in its settings, or the rights there: {again}"
    if answer.status in (404, 405) or 300 <= answer.status < 400:
        return "the URL is that of another server, or of another path of it: correct url="
    if answer.status == 422:
        return "the schema has a mistake, or the registry has a rule of its own: give another one by schema="
    return again


def _body_of(schema: RegisteredSchema) -> dict[str, Any]:
    """What a call has that registers a schema, or looks it up."""
    body: dict[str, Any] = {"schema": schema.schema}
    if schema.kind != "AVRO":  # the default, which older registries do not know by name
        body["schemaType"] = schema.kind
    if schema.references:
        body["references"] = schema.references
    return body
