"""``millwheel key``: list and inspect."""

from __future__ import annotations

import asyncio
import base64
from typing import Annotated, Any

import msgspec
import typer

from millwheel.cli.hooks import plain_failure
from millwheel.cli.key_list import list_keys
from millwheel.cli.options import DEFAULT_ADDRESS, Address, Output, Place, Timeout
from millwheel.cli.output import OutputFormat, print_plain, print_table
from millwheel.client.control import ControlClient
from millwheel.client.owned_intervals import incarnation_of, owned_interval, split_computation_name
from millwheel.client.step_keys import own_keys
from millwheel.model.interval_map import interval_from_proto
from millwheel.model.limits import MAX_KEY_BYTES
from millwheel.model.time import Timestamp, format_timestamp
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS, open_channel
from millwheel.rpc.clock import wall_now
from millwheel.rpc.errors import calling
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.hook_failures import failure_text
from millwheel.rpc.v1 import inspection_pb2 as wire
from millwheel.rpc.v1.inspection_pb2_grpc import InspectionServiceStub

__all__ = ["app"]


app = typer.Typer(
    help="Keys: those of a computation, and the state and timers of one.", no_args_is_help=True, add_completion=False
)

app.command("list")(list_keys)


@app.command()
def inspect(
    place: Place,
    key: Annotated[str, typer.Argument(help="The key, as text.")],
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """Show a key's state, timers, hold and pending records, as the worker that owns it has them.

    Example: millwheel key inspect zeitgeist/window-counter "cat videos"
    """
    topology, computation = split_computation_name(place)
    found, failure, shown = asyncio.run(_inspect(topology, computation, key, address, timeout))
    if output is not OutputFormat.TABLE:
        print_plain(found, output)
        return
    _print(found, failure, shown)


async def _inspect(
    topology: str, computation: str, key: str, address: str, timeout: float
) -> tuple[dict[str, Any], wire.KeyFailure | None, str]:
    """Return the key as plain values, its failure, and its state for people: empty, if that is the plain one."""
    raw = key.encode()
    if len(raw) > MAX_KEY_BYTES:
        raise RequestError(
            FailureCode.INVALID_ARGUMENT, f"the key has {len(raw):,} bytes", f"the limit is {MAX_KEY_BYTES:,}"
        )
    async with ControlClient(address, deadline=timeout) as client:
        answer = await client.get_topology(topology)
    incarnation = incarnation_of(answer.topology, computation)
    interval = owned_interval(answer, computation, raw)
    owner = interval.owner
    async with calling(owner.address), open_channel(owner.address) as channel:
        request = wire.InspectKeyRequest(incarnation=incarnation, key=raw)
        status = await InspectionServiceStub(channel).InspectKey(request, timeout=timeout)
    computed = [one for one in answer.topology.spec.computations if one.name == computation]
    failure = status.failure if status.HasField("failure") else None
    found = {
        "topology": topology,
        "computation": computation,
        "key": key,
        "own_keys": own_keys(computed[0], key) if computed else None,
        "interval": str(interval_from_proto(interval.keys)),
        "owner": owner.worker_id,
        "journal": status.journal,
        "commit": status.commit,
        "sealed_commit": status.sealed_commit or None,
        "state": _state(status),
        "timers": [_timer(timer) for timer in status.timers],
        "hold": format_timestamp(Timestamp(status.hold_us)) if status.HasField("hold_us") else None,
        "pending_records": status.pending_records,
        "pending_productions": status.pending_productions,
        "state_error": status.state_error or None,
        "waits": status.waits or None,
        "stopped": status.stopped or None,
        "failure": None if failure is None else plain_failure(failure),
    }
    return found, failure, status.state_shown


def _state(answer: wire.InspectKeyResponse) -> Any:
    """Return the state as a value that JSON can represent, or None if there is no state."""
    if not answer.state:
        return None
    try:
        return msgspec.json.decode(answer.state_text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return answer.state_text or {"base64": base64.b64encode(answer.state).decode()}


def _timer(timer: wire.TimerStatus) -> dict[str, Any]:
    return {
        "tag": timer.tag,
        "timestamp": format_timestamp(Timestamp(timer.timestamp_us)),
        "timestamp_us": timer.timestamp_us,
        "clock": "wall" if timer.wall_time else "watermark",
        "hold": format_timestamp(Timestamp(timer.hold_us)) if timer.HasField("hold_us") else None,
    }


def _print(found: dict[str, Any], failure: wire.KeyFailure | None, shown: str) -> None:
    for name in ("key", "interval", "owner", "journal", "commit"):
        print(f"{name:<20} {found[name]}")
    if found["own_keys"]:
        print(f"{'note':<20} {found['own_keys']}")
    if found["sealed_commit"]:
        print(
            f"{'not committed':<20} this is what commit {found['sealed_commit']} leaves; the store has not taken it yet"
        )
    state = "none" if found["state"] is None else msgspec.json.encode(found["state"]).decode()
    print(f"{'state':<20} {found['state_error'] or shown or state}")
    print(f"{'hold':<20} {found['hold'] or 'none'}")
    print(f"{'pending records':<20} {found['pending_records']}, without those that wait in its interval's queue")
    print(f"{'pending productions':<20} {found['pending_productions']}")
    if found["waits"]:
        print(f"{'waits':<20} {found['waits']}")
    if failure is not None:
        print(f"{'failing':<20} {failure_text(failure, wall_now(), stopped=bool(found['stopped']))}")
        print(f"{'failing work':<20} {failure.work}")
    print()
    rows = [[one["tag"], one["timestamp"], one["clock"], one["hold"] or ""] for one in found["timers"]]
    print_table(["timer", "at", "clock", "hold"], rows, "no timers")
