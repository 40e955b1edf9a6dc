"""`make bench-cluster`: figures of a cluster of processes on this machine, as a table and in build/bench-cluster.json.

`make bench-interval` (``--interval``) measures for how long an interval with 1 GB of state is unavailable. It writes
build/bench-interval.json.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import uvloop

from bench.build import choose
from bench.cluster import appends, changing_hands, group_commit, hops, stage_latency, takeover, watermark_lag
from bench.cluster.costs import Costs
from bench.cluster.group_commit import CountSizes
from bench.cluster.system import Components, System, components, system
from bench.cluster.targets import verdicts
from bench.cluster.warming import compiling, warm
from bench.machine import Machine
from bench.report import Figure, Row, print_figures, write_figures
from deploy.local.cassandra import InstallError
from deploy.local.ending import stoppable
from examples.demo.showing import say
from millwheel import MillwheelError

__all__ = ["main"]

_PATIENCE: Final = 840.0
_ON_ONE_SYSTEM: Final = ("stage_latency", "append.", "watermark_lag", "interval_", "takeover")
_INTERVAL_PATIENCE: Final = 1_800.0
_WORKERS: Final = 2


@dataclass(frozen=True, slots=True)
class Sizes:
    """The amount of work of each measurement."""

    store_warm: float = 150.0
    warm: float = 15.0
    seconds: float = 30.0
    count_warm: int = 300_000
    count: int = 1_000_000
    count_columns: int = 2_000_000
    repetitions: int = 20
    held_keys: int = 10_000
    held_state: int = 1_000
    timers: int = 100_000
    kills: int = 3


_WHOLE: Final = Sizes()
_QUICK: Final = Sizes(3.0, 3.0, 4.0, 50_000, 100_000, 400_000, 2, 1_000, 1_000, 5_000, 1)
_LARGE: Final = Sizes(held_keys=250_000, held_state=4_000)


def main() -> int:
    """Run the command. The exit code is 0 if everything was measured. The figures do not matter."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__)
    parser.add_argument(
        "--only", default="", help="measure only what has figures whose names begin so, with commas between"
    )
    parser.add_argument("--quick", action="store_true", help="little of everything, to see that it works")
    help_sync = "when Cassandra syncs: every ten seconds, its default, or before each answer"
    parser.add_argument("--commitlog", choices=("periodic", "batch"), default="periodic", help=help_sync)
    parser.add_argument("--interval", action="store_true", help="an interval with 1 GB of state, and nothing else")
    parser.add_argument("--pure", action="store_true", help="the Python tree, though a compiled one is there")
    parser.add_argument("--out", type=Path, help="where the figures go")
    parser.add_argument("--place", type=Path, help="where data and logs stay; else they go")
    options = parser.parse_args()
    try:
        return uvloop.run(stoppable(_measured(options)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted: everything is stopped", file=sys.stderr)
        return 130
    except (MillwheelError, InstallError, RuntimeError, TimeoutError) as error:
        print(f"FAILED: {error}" if str(error) else "FAILED: it took too long", file=sys.stderr)
        return 1


async def _measured(options: argparse.Namespace) -> int:
    place = (options.place or Path(tempfile.mkdtemp(prefix="millwheel-bench-"))) / "bench-cluster"
    shutil.rmtree(place, ignore_errors=True)
    name = "interval" if options.interval else "cluster"
    out = options.out or Path(f"build/bench-{name}.json")
    sizes = _QUICK if options.quick else _LARGE if options.interval else _WHOLE
    figures: list[Row] = [choose(options.pure)]
    machine = Machine()
    machine.look()
    try:
        async with asyncio.timeout(_INTERVAL_PATIENCE if options.interval else _PATIENCE):
            async with components(place, options.commitlog, say) as found:
                if options.interval:
                    await _changing_hands(found, sizes, figures)
                else:
                    await _all(found, sizes, options.only, figures)
    finally:
        if options.place is None:
            shutil.rmtree(place.parent, ignore_errors=True)
        machine.look()
        figures += machine.figures()
        print_figures(figures)
        write_figures(figures, out)
    for line in verdicts(one for one in figures if isinstance(one, Figure)):
        print(line)
    say(f"written to {out}")
    return 0


async def _changing_hands(found: Components, sizes: Sizes, figures: list[Row]) -> None:
    async with system(found, say, _WORKERS) as running:
        await _warm(found, sizes)
        figures += await changing_hands.measure(running, say, sizes.repetitions, sizes.held_keys, sizes.held_state)


async def _warm(found: Components, sizes: Sizes) -> None:
    say(f"warming up for {sizes.store_warm:.0f} s at most")
    compiled = partial(compiling, found.cassandra.nodes[0].pid)
    first, last = await warm(found.store_settings, compiled, sizes.store_warm)
    say(f"an append took {first:.1f} ms, and takes {last:.1f} ms now")


async def _all(found: Components, sizes: Sizes, only: str, figures: list[Row]) -> None:
    await _warm(found, sizes)
    counts = CountSizes(sizes.count_warm, sizes.count, sizes.count_columns)
    if any(_wanted(name, only) for name in _ON_ONE_SYSTEM):
        await _on_one_system(found, sizes, only, figures)
    if _wanted("hops", only):
        figures += await hops.measure(found, say, sizes.warm, sizes.seconds)
    if any(_wanted(name, only) for name in group_commit.NAMES):
        figures += await group_commit.measure(found, say, counts, only)


async def _on_one_system(found: Components, sizes: Sizes, only: str, figures: list[Row]) -> None:
    async with system(found, say, _WORKERS) as running:
        for names, measure in _measurements(running, sizes):
            if any(_wanted(name, only) for name in names):
                say(f"measuring {', '.join(names)}")
                costs = Costs(running)
                figures += await measure()
                say(costs.as_text())
                cores = costs.cores()
                figures += [Figure(f"{names[0]}.cores.{kind}", used, "", (used,)) for kind, used in cores.items()]
    figures += stage_latency.cost_of_guarantees(one for one in figures if isinstance(one, Figure))


def _wanted(name: str, only: str) -> bool:
    """Whether one of the prefixes in ``only`` is that of the figures of a measurement."""
    return any(name.startswith(one) or one.startswith(name) for one in only.split(","))


def _measurements(
    running: System, sizes: Sizes
) -> Iterator[tuple[tuple[str, ...], Callable[[], Awaitable[Sequence[Row]]]]]:
    """The measurements, by the prefix of their figures' names."""
    for form in ("strong", "plain"):
        yield (f"stage_latency.{form}",), partial(stage_latency.measure, running, form, sizes.warm, sizes.seconds)
    yield ("append",), partial(appends.measure, running.components.store_settings, sizes.seconds / 3)
    yield ("watermark_lag",), partial(watermark_lag.measure, running, sizes.warm, sizes.seconds)
    hands = partial(changing_hands.measure, running, say, sizes.repetitions, sizes.held_keys, sizes.held_state)
    yield ("interval_move", "interval_split", "interval_merge"), hands
    yield ("takeover",), partial(takeover.measure, running, say, sizes.timers, sizes.kills)


if __name__ == "__main__":
    sys.exit(main())
