"""`make test-faults`: a real cluster, a load that verifies itself, and faults one after the other. See ``--help``."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from examples.demo.showing import say
from tests.faults import history
from tests.faults.accidents import FAULTS, Fault
from tests.faults.checking import Violation, check
from tests.faults.cluster import Cluster, cluster
from tests.faults.history import History, Mended, Struck
from tests.faults.load import Load, ended, wall_micros
from tests.faults.recovery import Recovery, recoveries, table
from tests.faults.running import BUILD, run_to_end

__all__ = ["main"]

_PATIENCE: Final = 1_500.0
"""Seconds for all of it."""
_RECOVERY: Final = 90.0
"""Seconds from a fault's end until all must be back to normal."""
_NORMAL: Final = 2.5
"""Seconds that something may be under way where all is normal."""
_WARM: Final = 15.0
_STEADY: Final = 4.0
_SHOWN: Final = 40


def main() -> int:
    """The command; 0 if nothing was lost, repeated or early, and everything recovered."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    names = ", ".join(one.name for one in FAULTS)
    parser.add_argument("--only", default="", help=f"faults whose names begin so, with commas between: {names}")
    parser.add_argument("--nodes", type=int, default=3, help="of Cassandra")
    parser.add_argument("--members", type=int, default=3, help="of etcd")
    parser.add_argument("--seed", type=int, default=1, help="of the load")
    parser.add_argument("--check", type=Path, help="check a history that was recorded, and do nothing else")
    options = parser.parse_args()
    if options.check:
        return _report(options.check, [])
    chosen = [one for one in FAULTS if one.name.startswith(tuple(options.only.split(",")))]
    if not chosen:
        parser.error(f"no fault is called {options.only}: there are {names}")
    return run_to_end(_run(options, chosen), BUILD / "faults")


async def _run(options: argparse.Namespace, chosen: Sequence[Fault]) -> int:
    place, recorded = BUILD / "faults", BUILD / "faults" / "history.jsonl"
    shutil.rmtree(place, ignore_errors=True)
    written, began = History(recorded), time.monotonic()
    missed: list[str] = []
    try:
        async with (
            asyncio.timeout(_PATIENCE),
            cluster(place, say, nodes=options.nodes, members=options.members, disk="900m") as found,
        ):
            await found.submit()
            load = Load(found.address, written, options.seed, say)
            async with asyncio.TaskGroup() as group:
                loading = group.create_task(load.run())
                await _befall(found, load, written, chosen, missed)
                say("no more records: waiting for the ends of the streams")
                await ended(load, loading, missed)
            say(f"sent {load.sent.total():,} records; received {dict(load.received)}")
    finally:
        written.close()
    code = _report(recorded, missed)
    say(f"{len(chosen)} faults in {time.monotonic() - began:.0f} s")
    return code


async def _befall(found: Cluster, load: Load, written: History, chosen: Sequence[Fault], missed: list[str]) -> None:
    """One fault after the other; ``missed``: those after which not all was back to normal."""
    await found.settled()
    await asyncio.sleep(_WARM)
    await _normal(load, found)
    for fault in chosen:
        await asyncio.sleep(_STEADY)
        async with fault.accident(found) as whom:
            say(f"{fault.name}: {whom}")
            written.add(Struck(wall_micros(), fault.name, whom, fault.clock))
            await asyncio.sleep(fault.lasts)
        written.add(Mended(wall_micros(), fault.name, False))
        if await _normal(load, found):
            written.add(Mended(wall_micros(), fault.name, True))
        else:
            missed.append(f"{fault.name}: after {_RECOVERY:.0f} s, {load.lag.as_text()}")
            say(missed[-1])


async def _normal(load: Load, found: Cluster) -> bool:
    """Wait until nothing has been under way for long, for two seconds, and all are there; whether that came."""
    since, end = time.monotonic(), time.monotonic() + _RECOVERY
    while (now := time.monotonic()) < end:
        if load.lag.seconds() > _NORMAL:
            since = now
        elif now - since >= 2 and await found.all_there():
            return True
        await asyncio.sleep(0.1)
    return False


def _report(recorded: Path, missed: list[str]) -> int:
    """Check what happened, and say how it went; 0 if all is right."""
    violations, found = check(history.read(recorded)), recoveries(history.read(recorded))
    struck = [one for one in history.read(recorded) if isinstance(one, Struck)]
    for line in table(found):
        print(line)
    for violation in violations[:_SHOWN]:
        print(f"VIOLATION: {violation.kind}: {violation.text} ({_during(violation, struck)})", file=sys.stderr)
    for one in missed:
        print(f"NOT RECOVERED: {one}", file=sys.stderr)
    kinds = {kind: sum(one.kind == kind for one in violations) for kind in ("lost", "repeated", "early")}
    others = len(violations) - sum(kinds.values())
    print(f"{', '.join(f'{count} {kind}' for kind, count in kinds.items())}, {others} otherwise wrong")
    _write(BUILD / "faults.json", found, violations)
    bad = violations or missed or not all(one.recovered for one in found)
    return 1 if bad else 0


def _during(violation: Violation, struck: Sequence[Struck]) -> str:
    """The last fault before it."""
    before = [one for one in struck if one.at <= violation.at]
    return f"{(violation.at - before[-1].at) / 1e6:.1f} s after {before[-1].fault}" if before else "before any fault"


def _write(path: Path, found: Sequence[Recovery], violations: Sequence[Violation]) -> None:
    report = {"faults": found, "violations": violations}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    say(f"written to {path}")


if __name__ == "__main__":
    sys.exit(main())
