"""`make test-faults`: a real cluster, a load that checks its results, and one fault after the other. See ``--help``."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from examples.demo.showing import say
from tests.faults import history
from tests.faults.accidents import FAULTS, Fault
from tests.faults.checking import Violation, check
from tests.faults.cluster import Cluster
from tests.faults.history import History, Mended, Struck
from tests.faults.load import Load, wall_micros
from tests.faults.recovery import recoveries, table
from tests.faults.running import BUILD, complain, loaded, parser, run_to_end

_PATIENCE: Final = 1_500.0
"""Seconds for the whole command."""
_RECOVERY: Final = 90.0
"""Seconds from a fault's end until the cluster must be back to normal."""
_NORMAL: Final = 2.5
"""Seconds that a result may be outstanding in a normal cluster."""
_WARM: Final = 15.0
_STEADY: Final = 4.0
_PLACE: Final = BUILD / "faults"


def main() -> int:
    """The command; 0 if nothing was lost, repeated or early, and everything recovered."""
    arguments = parser("tests.faults", __doc__, nodes=3)
    names = ", ".join(one.name for one in FAULTS)
    arguments.add_argument("--only", default="", help=f"faults whose names begin so, with commas between: {names}")
    arguments.add_argument("--check", type=Path, help="check a history that was recorded, and do nothing else")
    options = arguments.parse_args()
    if options.check:
        return _report(options.check, [])
    chosen = [one for one in FAULTS if one.name.startswith(tuple(options.only.split(",")))]
    if not chosen:
        arguments.error(f"no fault is called {options.only}: there are {names}")
    return run_to_end(_run(options, chosen), _PLACE)


async def _run(options: argparse.Namespace, chosen: Sequence[Fault]) -> int:
    began, missed = time.monotonic(), list[str]()
    async with asyncio.timeout(_PATIENCE), loaded(_PLACE, options, missed, disk="900m") as (found, load, written):
        await _befall(found, load, written, chosen, missed)
    code = _report(_PLACE / "history.jsonl", missed)
    say(f"{len(chosen)} faults in {time.monotonic() - began:.0f} s")
    return code


async def _befall(found: Cluster, load: Load, written: History, chosen: Sequence[Fault], missed: list[str]) -> None:
    """Inject one fault after the other. ``missed``: the faults after which the cluster did not return to normal."""
    await asyncio.sleep(_WARM)
    await _normal(load, found)
    for fault in chosen:
        await asyncio.sleep(_STEADY)
        async with fault.befall(found) as whom:
            say(f"{fault.name}: {whom}")
            written.add(Struck(wall_micros(), fault.name, whom, fault.clock))
            await asyncio.sleep(fault.lasts)
        written.add(Mended(wall_micros(), fault.name, False))
        if await _normal(load, found):
            written.add(Mended(wall_micros(), fault.name, True))
        else:
            missed.append(f"{fault.name}: after {_RECOVERY:.0f} s, {load.lag_as_text()}")
            say(missed[-1])


async def _normal(load: Load, found: Cluster) -> bool:
    """Wait for two seconds in which no result is outstanding for long. Returns False if they do not come in time."""
    since, end = time.monotonic(), time.monotonic() + _RECOVERY
    while (now := time.monotonic()) < end:
        if load.lag() > _NORMAL:
            since = now
        elif now - since >= 2 and await found.all_there():
            return True
        await asyncio.sleep(0.1)
    return False


def _report(recorded: Path, missed: list[str]) -> int:
    """Check the history and print the outcome. Returns 0 if everything is right."""
    violations, found = check(history.read(recorded)), recoveries(history.read(recorded))
    struck = [one for one in history.read(recorded) if isinstance(one, Struck)]
    for line in table(found):
        print(line)
    complain(violations, [f"not recovered: {one}" for one in missed], lambda one: _during(one, struck))
    kinds = Counter(one.kind if one.kind in ("lost", "repeated", "early") else "otherwise wrong" for one in violations)
    print(", ".join(f"{kinds[kind]} {kind}" for kind in ("lost", "repeated", "early", "otherwise wrong")))
    report = BUILD / "faults.json"
    report.write_bytes(msgspec.json.format(msgspec.json.encode({"faults": found, "violations": violations}), indent=2))
    say(f"written to {report}")
    return 1 if violations or missed or not all(one.recovered for one in found) else 0


def _during(violation: Violation, struck: Sequence[Struck]) -> str:
    """The time of a violation, relative to the last fault before it."""
    before = [one for one in struck if one.at <= violation.at]
    return f"{(violation.at - before[-1].at) / 1e6:.1f} s after {before[-1].fault}" if before else "before any fault"


if __name__ == "__main__":
    sys.exit(main())
