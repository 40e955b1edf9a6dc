"""``millwheel stream produce``: one record from the command line."""

from __future__ import annotations

import asyncio
import socket
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Final
from uuid import uuid4

import msgspec
import typer

from millwheel.cli.options import DEFAULT_ADDRESS, Address, Output, Stream
from millwheel.cli.output import OutputFormat, Plain, print_plain
from millwheel.cli.times import time_or_now
from millwheel.client.control import ControlClient
from millwheel.client.holds.unacked import unacked_explainer
from millwheel.client.injector import Injector, InjectorSettings
from millwheel.client.injector.errors import NotAckedError
from millwheel.client.injector.likelihood import ANY_TIMESTAMP_VARIABLE, is_likely, unlikely
from millwheel.model.time import Timestamp, format_timestamp
from millwheel.rpc.clock import wall_now
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.errors import ValueEncodeError

__all__ = ["produce"]

_DECODED_ELSEWHERE: Final = {
    specs.VALUE_FORMAT_PROTOBUF: "carries protobuf messages",
    specs.VALUE_FORMAT_CUSTOM: "has a codec of its own",
}


def produce(
    stream: Stream,
    value: Annotated[str, typer.Argument(metavar="JSON", help="The record as JSON. Default: read from stdin.")] = "",
    timestamp: Annotated[
        str,
        typer.Option(metavar="TIME|now", help="The record's time: ISO 8601 with an offset, as 2026-01-31T12:00:00Z."),
    ] = "now",
    id_: Annotated[
        str,
        typer.Option(
            "--id",
            metavar="ID",
            help="The record's id. The same id again from the same process has no second effect while the stream keeps"
            " ids (id_slack). Default: a new id.",
        ),
    ] = "",
    process: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The injector process's name. Two calls at the same time need two names. Default: produce-HOST.",
        ),
    ] = "",
    any_timestamp: Annotated[
        bool,
        typer.Option(
            "--any-timestamp",
            envvar=ANY_TIMESTAMP_VARIABLE,
            help="Take times before 1980 or more than a year ahead, too.",
        ),
    ] = False,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds to wait until the record is acknowledged.")] = 30.0,
) -> None:
    """Send one record into a stream. Without --id, each call of this command sends a new record under a new id.

    The record is checked against the type that the stream declares. Each consumer takes its key from the record. When
    the command returns, the record has taken effect, and the injector process is idle: no low watermark waits for it.
    The answer says whether the record is late, and whether a record with this id had taken effect before.

    Example: millwheel stream produce zeitgeist/queries '{"text": "cat videos"}'
    """
    at = time_or_now(timestamp, "--timestamp")
    if not any_timestamp and not is_likely(at, now := wall_now()):
        raise typer.BadParameter(unlikely(at, now, {}, "give --any-timestamp", "text"), param_hint="--timestamp")
    record = _decoded(value or _from_stdin())
    name = process or f"produce-{socket.gethostname()}"
    id_ = id_ or uuid4().hex
    sent = asyncio.run(_produce(stream, record, at, id_, name, any_timestamp, address, timeout))
    if output is not OutputFormat.TABLE:
        answer: dict[str, Plain] = {"stream": sent.stream, "process": name, "id": id_}
        fate: dict[str, Plain] = {"known": sent.known, "late": sent.late}
        print_plain({**answer, **fate, "timestamp": format_timestamp(at), "timestamp_us": at}, output)
        return
    if sent.known:
        print(f"{sent.stream} had a record of process {name} with id {id_} before: this one has no effect")
    else:
        late = ", and is late: it is behind the low watermark" if sent.late else ""
        print(f"the record is in {sent.stream} with timestamp {format_timestamp(at)}{late}")
    print(f"injector process {name} is idle: no low watermark waits for it", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class _Sent:
    """What became of the record. ``known``: each consumer knew its id, so ``late`` means nothing and is False."""

    stream: str
    known: bool
    late: bool


def _from_stdin() -> str:
    if sys.stdin is None or sys.stdin.isatty():
        raise typer.BadParameter("give the record as JSON, as an argument or on stdin", param_hint="JSON")
    return sys.stdin.read()


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise typer.BadParameter(f"{text.strip()!r:.80} is no JSON: {error}", param_hint="JSON") from error


async def _produce(
    stream: str, record: Any, at: Timestamp, id_: str, process: str, any_timestamp: bool, address: str, timeout: float
) -> _Sent:
    """Send a record, and wait for its ACKs."""
    async with ControlClient(address) as client:
        declared = (await client.routing(stream)).stream
    injector = Injector(
        declared.name,
        address=address,
        process=process,
        settings=InjectorSettings(
            check_at_worker=True, any_timestamp=any_timestamp, explain=unacked_explainer(address)
        ),
    )
    value = _value(record, declared)
    await injector.open()
    try:
        try:
            await injector.send(value, timestamp=at, id=id_)
            await injector.flush(timeout)
        except NotAckedError as error:
            raise RequestError(
                FailureCode.DEADLINE_EXCEEDED,
                str(error),
                f"it may have no effect: send it again with `--id {id_}`, which counts once. Low watermarks wait for "
                f"injector process {process} until one of its records is ACKed",
            ) from error
        except BaseException:
            await _make_idle(injector)
            raise
        await _make_idle(injector)
        known = 0 < injector.acks == injector.known
        return _Sent(declared.name, known, bool(injector.late) and not known)
    finally:
        await injector.close()


async def _make_idle(injector: Injector) -> None:
    await injector.idle()
    await injector.settle()


def _value(record: Any, declared: specs.StreamSpec) -> Any:
    """The value that the injector encodes. ValueEncodeError: JSON cannot express a record of the stream."""
    if (why := _DECODED_ELSEWHERE.get(declared.format)) is not None:
        raise ValueEncodeError(f"stream {declared.name!r} {why}: a program sends its records, with an Injector")
    if declared.format != specs.VALUE_FORMAT_RAW:
        return record
    if not isinstance(record, str):
        raise ValueEncodeError(f"stream {declared.name!r} carries bytes: give a JSON string, whose UTF-8 text is sent")
    return record.encode()
