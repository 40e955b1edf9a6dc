"""``millwheel timer``: list."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from millwheel.cli.options import DEFAULT_ADDRESS, Address, Output, Place, Timeout
from millwheel.cli.output import OutputFormat, print_plain, print_table
from millwheel.cli.reaching import ask
from millwheel.client.control import ControlClient
from millwheel.client.listings import ComputationListings, OwnedTimer
from millwheel.client.owned_intervals import split_computation_name
from millwheel.model.interval_map import interval_from_proto
from millwheel.model.time import Duration, Timestamp, format_duration, format_timestamp
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS
from millwheel.rpc.clock import wall_now

__all__ = ["app"]

app = typer.Typer(
    help="Timers: those of a computation that have not fired.", no_args_is_help=True, add_completion=False
)


@app.callback()
def _verbs() -> None:
    """Timers: those of a computation that have not fired."""


@app.command("list")
def list_timers(
    place: Place,
    key: Annotated[str | None, typer.Option(help="Only the timers of this key.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="List at most so many: the earliest.")] = 100,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """List the timers that have not fired, in the order of their times, each with the clock that it waits for.

    A timer waits for the low watermark of its interval's input, or for the wall clock of the interval's owner. The
    column timer has its tag. The low watermark that the computation passes on stays below hold until the timer fires.

    Example: millwheel timer list zeitgeist/window-counter --limit 10
    """
    topology, computation = split_computation_name(place)

    async def work(client: ControlClient) -> tuple[list[OwnedTimer], bool]:
        listings = ComputationListings(await client.get_topology(topology), computation, timeout)
        return await listings.timers(None if key is None else key.encode(), limit)

    timers, more = ask(work, address, timeout)
    now = wall_now()
    rows = [_plain(one, now) for one in timers]
    if output is not OutputFormat.TABLE:
        print_plain(rows, output)
    else:
        print_table(["at", "key", "timer", "waits for", "hold"], [_row(one) for one in rows], "no timers")
    if more:
        print(f"there are more timers: these are the first {limit:,} (--limit)", file=sys.stderr)


def _plain(one: OwnedTimer, now: int) -> dict[str, Any]:
    timer = one.listed.timer
    clock = now if timer.wall_time else one.input_watermark
    return {
        "key": one.listed.key.decode("utf-8", "backslashreplace"),
        "tag": timer.tag,
        "timestamp": format_timestamp(Timestamp(timer.timestamp_us)),
        "timestamp_us": timer.timestamp_us,
        "clock": "wall" if timer.wall_time else "watermark",
        "clock_at": format_timestamp(Timestamp(clock)),
        "clock_at_us": clock,
        "hold": format_timestamp(Timestamp(timer.hold_us)) if timer.HasField("hold_us") else None,
        "interval": str(interval_from_proto(one.interval.keys)),
        "owner": one.interval.owner.worker_id,
    }


def _row(one: dict[str, Any]) -> list[object]:
    left = one["timestamp_us"] - one["clock_at_us"]
    if one["clock"] == "wall":
        waits = f"the clock, in {format_duration(Duration(left))}" if left > 0 else "nothing: it is due"
    else:
        waits = f"the low watermark, now {one['clock_at']}" if left > 0 else "nothing: it is due"
    return [one["timestamp"], one["key"], one["tag"], waits, one["hold"] or ""]
