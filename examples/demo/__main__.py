"""Runs the demonstration. See the package's docstring."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Final

from examples.demo.first_pass import FirstPass, first_pass
from examples.demo.picture import alert_line, render_page
from examples.demo.second_pass import Outcome, second_pass
from examples.demo.server import ROOT, DemoServer
from examples.demo.showing import percentiles, say
from examples.zeitgeist.flights import load_flights
from examples.zeitgeist.records import Anomaly
from millwheel import MillwheelError, split_key

__all__ = ["main"]

EXPECTED: Final = {
    "the blizzard": ("dip", ("2013-02-08", "2013-02-09")),
    "the delays of 8 March": ("spike", ("2013-03-08",)),
    "the delays of 1 July": ("spike", ("2013-07-01",)),
}
"""Events of that year that Zeitgeist must find. The topology does not contain them."""
PATIENCE: Final = 600.0
"""Seconds after which the demonstration counts as stuck."""


def main() -> int:
    """Run the command. The exit code is 0 if every check succeeds."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "demo", help="where the picture goes")
    parser.add_argument("--keep", action="store_true", help="leave the last server and its console open until Ctrl-C")
    given = parser.parse_args()
    out: Path = given.out
    out.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="millwheel-demo-"))
    try:
        problems = asyncio.run(_run(out, place, keep=given.keep))
    except Exception as error:
        problems = _causes(error)
    finally:
        for log in place.glob("*.log"):
            shutil.copy(log, out)
        shutil.rmtree(place, ignore_errors=True)
    for problem in problems:
        print(f"FAILED: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _causes(error: Exception) -> list[str]:
    """The errors, one line for each. An unexpected error is printed with its traceback."""
    if isinstance(error, ExceptionGroup):
        return [cause for one in error.exceptions for cause in _causes(one)]
    if not isinstance(error, (RuntimeError, TimeoutError, MillwheelError)):
        traceback.print_exception(error)
    return [str(error) or f"not done after {PATIENCE:.0f} seconds"]


async def _run(out: Path, place: Path, *, keep: bool) -> list[str]:
    flights = load_flights()
    async with asyncio.timeout(PATIENCE) as limit:
        with DemoServer(place / "server.log") as server:
            say(f"the server is ready at {server.address}, and its console at {server.console}")
            say(server.submit("examples.zeitgeist.topology:zeitgeist"))
            first = await first_pass(server, flights, place)
        say(f"first pass done: all departures were through {first.seconds:.1f} s after Spark had started")
        say("second pass: the first six weeks once more, with late and duplicate records in known numbers")
        with DemoServer(place / "server-2.log") as server:
            say(f"the console is at {server.console}")
            server.submit("examples.zeitgeist.topology:winter")
            second = await second_pass(server, flights)
            page = out / "zeitgeist.html"
            page.write_text(render_page(first.found, _figures(first, second)))
            _report(first, second, page)
            if keep:
                limit.reschedule(None)
                await _interrupted(f"the server goes on until Ctrl-C: its console is at {server.console}")
    return [*first.problems, *second.problems, *missing(first.found.anomalies)]


async def _interrupted(text: str) -> None:
    """Say something, and wait for Ctrl-C or SIGTERM."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    say(text)
    await stop.wait()


def missing(found: list[Anomaly]) -> list[str]:
    """The expected anomalies that were not found, as texts."""
    known = {(alert.kind, alert_line(alert)[:10]) for alert in found}
    return [
        f"{what} was not found"
        for what, (kind, days) in EXPECTED.items()
        if not known.intersection((kind, day) for day in days)
    ]


def _report(first: FirstPass, second: Outcome, page: Path) -> None:
    record, watermark, lag = map(percentiles, (second.record_ms, second.watermark_ms, first.lag_hours))
    counts, again = first.counts, second.counted["window-counter"]
    print("\nAlerts")
    for alert in sorted(first.found.anomalies):
        print(alert_line(alert))
    print("\nFirst pass, by Spark")
    _rows(
        ("records in", f"{counts['records']:,}, all through {first.seconds:.1f} s after Spark had started"),
        ("late, duplicate", f"{counts['late_records']:,}, {counts['duplicates']:,}"),
        ("micro-batches", "{batches}: median {median_ms:,} ms, longest {longest_ms:,} ms".format(**first.spark)),
        ("watermark lag", f"{lag[0]:.1f} hours behind the newest departure (median)"),
        ("", "21.7 of them wait for late departures, and the others for the end of a micro-batch"),
    )
    print("Read back by Spark")
    _rows(
        ("alerts", f"{len(first.read_back['alerts'])} rows of the stream zeitgeist/anomalies"),
        ("models", f"{first.read_back['learned']} of the states of zeitgeist/traffic-model"),
        ("busiest hours", "; ".join(f"{_hour(key)}: {most}" for key, most in first.read_back["busiest"])),
    )
    print("Second pass, by the client library")
    _rows(
        ("records in", f"{again['records']:,}"),
        ("late", f"{again['late_records']:,} of {second.late:,} that were sent"),
        ("duplicate", f"{again['duplicates']:,} of {second.duplicates:,} that were sent"),
        ("latency", _milliseconds(record) + ", from sending to committed"),
        ("watermark lag", _milliseconds(watermark) + ", from publishing to the last computation"),
    )
    print(f"Picture: {page}")


def _rows(*rows: tuple[str, str]) -> None:
    for name, text in rows:
        print(f"  {name:16}  {text}")


def _hour(key: str) -> str:
    return " ".join(split_key(key))


def _milliseconds(values: tuple[float, float, float]) -> str:
    return "{:.1f} / {:.1f} / {:.1f} ms p50 / p95 / p99".format(*values)


def _figures(first: FirstPass, second: Outcome) -> list[tuple[str, str, str]]:
    counts = first.counts
    return [
        (f"{counts['records']:,}", "departures", "each counted exactly once"),
        (f"{len(first.found.anomalies)}", "alerts", "the same as from the whole table"),
        (f"{counts['late_records']} / {counts['duplicates']}", "late / duplicate", "none were sent, none were seen"),
        (f"{second.late} / {second.duplicates}", "in the second pass", "so many were sent, so many were seen"),
        (f"{percentiles(second.record_ms)[0]:.1f} ms", "to commit a record", "median; on disk, exactly once"),
        (f"{percentiles(second.watermark_ms)[0]:.1f} ms", "watermark lag", "median; through all computations"),
    ]


if __name__ == "__main__":
    sys.exit(main())
