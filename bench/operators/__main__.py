"""`python -m bench.operators`: each operator beside the same program written by hand, by turns, in CPU time."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from bench.operators import joins, keyed, windowed
from bench.operators.records import CHUNK
from bench.operators.turns import Compared, compare
from bench.report import Figure, write_figures

__all__ = ["PAIRS", "main"]

PAIRS: Final = {pair.name: pair for pair in (*windowed.PAIRS, *keyed.PAIRS, *joins.PAIRS)}
MOST: Final = 1.1
"""The ratio from which an operator is too slow."""


def main() -> None:
    """Measure, print and write the ratios. Both programs of a pair get the same records, and must produce the same."""
    parser = argparse.ArgumentParser(prog="python -m bench.operators", description=main.__doc__)
    parser.add_argument("--records", type=int, default=20 * CHUNK, help="records of each program")
    parser.add_argument("--runs", type=int, default=3, help="runs of each pair, of which each second's best counts")
    parser.add_argument(
        "--only", default="", choices=["", *PAIRS], metavar="NAME", help="one pair: " + ", ".join(PAIRS)
    )
    parser.add_argument("--out", type=Path, default=Path("build/bench-operators.json"))
    arguments = parser.parse_args()
    began = time.monotonic()
    table = Table(box=None, header_style="bold")
    for title in ("OPERATOR", "LIBRARY µs", "BY HAND µs", "RATIO", ""):
        table.add_column(title, justify="left" if title in ("OPERATOR", "") else "right")
    figures = []
    for name in [arguments.only] if arguments.only else list(PAIRS):
        found = compare(PAIRS[name], arguments.records, arguments.runs)
        table.add_row(*_row(found))
        figures.append(Figure(f"operators.{name}.ratio", found.ratio, "", found.ratios))
        print(f"{name}: {found.ratio:.2f}", flush=True)
    Console().print(table)
    write_figures(figures, arguments.out)
    print(f"written to {arguments.out} after {time.monotonic() - began:.0f} s")


def _row(found: Compared) -> tuple[str, ...]:
    library, by_hand = (f"{found.microseconds(by_hand=each):.1f}" for each in (False, True))
    return found.name, library, by_hand, f"{found.ratio:.2f}", "SLOWER" if found.ratio > MOST else ""


if __name__ == "__main__":
    main()
