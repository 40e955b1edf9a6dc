"""`make bench-full`: measure all figures of docs/performance.md in turn, draw them, and put them into the page.

Each part is a benchmark of its own, in a process of its own, with a time limit. What it has measured goes to
docs/figures, with the date, the commit and the machine. A part that fails leaves the figures of its last run.
``--draw`` measures nothing.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from bench.figures.drawing import draw
from bench.figures.measured import Kept, Origin, load_all, origin_now, rows_of, save
from bench.figures.page import filled
from bench.figures.parts import BUILD, PARTS, Part
from bench.figures.tables import tables

__all__ = ["main", "measure", "show"]

_FOLDER: Final = Path("docs/figures")
_PAGE: Final = Path("docs/performance.md")
_STOPPING: Final = 20.0


def main() -> int:
    """Run the command. The exit code is 1 if a part failed."""
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(prog="python -m bench.figures", description=__doc__)
    parser.add_argument("--only", default="", help=f"parts, with commas between: {', '.join(names)}")
    parser.add_argument("--draw", action="store_true", help="draw what was measured before")
    parser.add_argument("--quick", action="store_true", help=f"little of everything, into {BUILD / 'quick'} alone")
    parser.add_argument("--pure", action="store_true", help="the Python tree, though a compiled one is there")
    parser.add_argument("--note", default="", help="what readers must know of this run")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else [part.name for part in PARTS if part.usual]
    if unknown := set(wanted) - set(names):
        parser.error(f"--only {','.join(sorted(unknown))}: there is no such part, but {', '.join(names)}")
    folder = BUILD / "quick" if options.quick else _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    failed, origin = [], origin_now(options.note)
    for part in PARTS:
        if part.name in wanted and not options.draw:
            began = time.monotonic()
            print(f"=== {part.name}: {part.limit:.0f} s at most", flush=True)
            if not measure(part, folder, origin, options.quick, options.pure):
                failed.append(part.name)
            print(f"=== {part.name}: {time.monotonic() - began:.0f} s", flush=True)
    show(folder, None if options.quick else _PAGE)
    if failed:
        print(f"FAILED: {', '.join(failed)}; their earlier figures stay", file=sys.stderr)
    return int(bool(failed))


def measure(part: Part, folder: Path, origin: Origin, quick: bool, pure: bool) -> bool:
    """Run a part, and keep what it has measured. Returns whether it succeeded."""
    options = [*(part.quick if quick else ()), *(("--pure",) if pure and part.compiles else ())]
    part.written.unlink(missing_ok=True)
    command = [sys.executable, "-m", *part.command, *options, "--out", str(part.written)]
    if not _run(command, part.limit):
        return False
    try:
        rows = rows_of(part.name, part.written.read_bytes())
    except (OSError, ValueError) as error:
        print(f"{part.name} has written no figures: {error}", file=sys.stderr)
        return False
    save(Kept(origin, rows), folder / f"{part.name}.json")
    return True


def _run(command: list[str], limit: float) -> bool:
    """Run a command, and end it at its limit, with all processes of its group. Returns whether it succeeded."""
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            return process.wait(limit) == 0
        except subprocess.TimeoutExpired:
            print(f"{' '.join(command)} takes longer than {limit:.0f} s and is ended", file=sys.stderr)
            return False
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of the process's group. It may stop its own children first."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_STOPPING)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def show(folder: Path, page: Path | None) -> None:
    """Draw all plots into the folder, and put the tables into the page, if there is one."""
    kept = load_all(folder)
    files = draw({name: one.readings(name) for name, one in kept.items()}, folder)
    print("drawn:", ", ".join(map(str, files)) or "nothing")
    if page is not None:
        page.write_text(filled(page.read_text(), tables(kept)))
        print(f"written into {page}")


if __name__ == "__main__":
    sys.exit(main())
