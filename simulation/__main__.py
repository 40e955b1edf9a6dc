"""`python -m simulation --seeds N --seed K`: runs N seeds from K on, and shows the history of each seed that fails."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path

from simulation.replaying import with_fixed_hashes


def main() -> int:
    """Run the seeds and return the exit status:

    0 if all seeds held, 1 if a seed failed, 130 if the run was interrupted.
    """
    options = _options()
    from simulation.blocks.operators import examine_all
    from simulation.clocks import find_places
    from simulation.forking import run_many  # imported after the restart with fixed hashes

    if options.mutation:
        from simulation.mutations import MUTATIONS

        MUTATIONS[options.mutation].apply()
    find_places()
    examine_all()
    gc.collect()
    gc.freeze()
    began, ran, failed = time.monotonic(), set[int](), list[int]()
    seeds = range(options.seed, options.seed + options.seeds)
    # Ctrl-C or SIGTERM ends a long run. The command still prints the count of finished seeds and the command that
    # continues the run.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        tempfile.TemporaryDirectory(prefix="millwheel-simulation-") as directory,
        # The generator closes before the directory is removed, so that no process still writes into it.
        closing(run_many(seeds, Path(directory), options.processes)) as verdicts,
        suppress(KeyboardInterrupt),
    ):
        for verdict in verdicts:
            ran.add(verdict.seed)
            if options.digests:
                print(verdict.seed, verdict.digest, flush=True)
            if verdict.violations or options.history:
                sys.stdout.write(verdict.history)
            if verdict.violations:
                failed.append(verdict.seed)
                print(f"seed {verdict.seed} FAILS:\n  " + "\n  ".join(verdict.violations[:20]))
                print(f"replay it: make simulate SEEDS=1 SEED={verdict.seed}", flush=True)
                if len(failed) >= options.failures:
                    break
            elif sys.stderr.isatty():
                sys.stderr.write(f"\r{len(ran)}/{options.seeds} seeds ")
    took, done = time.monotonic() - began, len(ran)
    outcome = f"{len(failed)} of {done} seeds fail: {failed}" if failed else f"{done} seeds hold"
    print(f"{outcome} (from {options.seed}; {took:.1f} s, {done / took:.2f} seeds/s)")
    if done < options.seeds:
        first = next(seed for seed in seeds if seed not in ran)
        print(f"go on: make simulate SEEDS={seeds.stop - first} SEED={first}")
    return 1 if failed else 0 if done == options.seeds else 130


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--seed", type=int, default=1, help="the first of them, any 64-bit number")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1), help="how many run side by side")
    parser.add_argument("--failures", type=int, default=1, help="stop after so many seeds that fail")
    parser.add_argument("--history", action="store_true", help="show the history of seeds that hold, too")
    parser.add_argument("--digests", action="store_true", help="show each history's digest, to compare replays by")
    parser.add_argument("--mutation", default="", help="take a mechanism out: a name of simulation/mutations/")
    return parser.parse_args()


if __name__ == "__main__":
    with_fixed_hashes("simulation")
    sys.exit(main())
