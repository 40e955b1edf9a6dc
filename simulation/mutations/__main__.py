"""`python -m simulation.mutations`: tries every mutation, two at a time, and shows the check or test that caught it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Final

from simulation.forking import apart
from simulation.mutations import MUTATIONS, Mutation
from simulation.mutations.trial import Caught, Trials, UnsoundError

_WIDTHS: Final = (28, 4, 68, 9, 6)
_HEADINGS: Final = ("mutation", "of", "what is done no more", "after", "s")


def main() -> int:
    """Try the mutations and return the exit status: 1 if one was not caught."""
    options = _options()
    if options.check:
        return _check(MUTATIONS.values())
    chosen = [MUTATIONS[name] for name in options.names or MUTATIONS]
    rows: list[tuple[Mutation, str, str, str]] = []
    trials, caught, began = Trials(), 0, time.monotonic()
    if not options.names:
        print("the tests that stand in for the simulator, without any mutation …", flush=True)
        trials.check_tests()
    print(_line(_HEADINGS) + "caught by", flush=True)
    with ThreadPoolExecutor(options.processes) as pool:
        running = {pool.submit(_timed, trials, one): one for one in chosen}
        for future in as_completed(running):
            mutation, (outcome, seconds) = running[future], future.result()
            if isinstance(outcome, Caught):
                caught += 1
                after, by = outcome.after, outcome.by
            else:
                after, by = "-", " ".join(outcome.split())
            rows.append((mutation, after, f"{seconds:.0f}", by))
            text = by if options.wide else by[:110]
            print(
                _line((mutation.name, mutation.guarantee, mutation.mechanism, after, f"{seconds:.0f}")) + text,
                flush=True,
            )
    if options.markdown:
        options.markdown.write_text(_markdown(rows))
    print(f"{caught} of {len(chosen)} mutations caught ({time.monotonic() - began:.0f} s)")
    return 0 if caught == len(chosen) else 1


def _timed(trials: Trials, mutation: Mutation) -> tuple[Caught | str, float]:
    """The outcome of a trial, and its seconds."""
    began = time.monotonic()
    try:
        outcome: Caught | str = trials.run(mutation) or "not caught"
    except UnsoundError as error:
        outcome = f"NOT COUNTED: {error}"
    return outcome, time.monotonic() - began


def _line(columns: Iterable[str]) -> str:
    return "".join(f"{text:{width}} " for text, width in zip(columns, _WIDTHS, strict=True))


def _markdown(rows: list[tuple[Mutation, str, str, str]]) -> str:
    """The table for docs/mutations.md, in the order of the modules."""
    order = list(MUTATIONS)
    lines = ["| mutation | of | what is done no more | caught by | after |", "|---|---|---|---|---|"]
    for mutation, after, _, by in sorted(rows, key=lambda row: order.index(row[0].name)):
        by = by.replace("|", "\\|")
        lines.append(f"| `{mutation.name}` | {mutation.guarantee} | {mutation.mechanism} | {by[:140]} | {after} |")
    return "\n".join(lines) + "\n"


def _check(mutations: Iterable[Mutation]) -> int:
    """Apply each mutation in a fork; 1 if one does not fit the product."""
    misfits = [text for text in apart((one.name, partial(_misfit, one)) for one in mutations) if text]
    print(*misfits, f"{len(misfits)} do not fit", sep="\n")
    return 1 if misfits else 0


def _misfit(mutation: Mutation) -> str:
    """Why a mutation does not fit the product; empty if it does."""
    try:
        mutation.apply()
    except BaseException as error:
        return f"{mutation.name}: {type(error).__name__}: {error}"
    return ""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulation.mutations", description=__doc__)
    parser.add_argument(
        "names", nargs="*", choices=[[], *MUTATIONS], metavar="NAME", help="those to try; by default all"
    )
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1), help="how many run side by side")
    parser.add_argument("--wide", action="store_true", help="show whole messages")
    parser.add_argument("--markdown", type=Path, help="write the table there, too")
    parser.add_argument("--check", action="store_true", help="only see that each fits the product")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
