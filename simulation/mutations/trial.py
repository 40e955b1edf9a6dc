"""The trial of one mutation: which check or test catches it, and after how many simulated runs."""

from __future__ import annotations

import re
import subprocess
import threading
from dataclasses import dataclass
from typing import Final

from simulation.mutations.base import MUTATIONS, Mutation
from simulation.replaying import run_module

__all__ = ["Caught", "Trials", "UnsoundError", "names_of_tests"]

_SECONDS: Final = 240.0
"""The time limit of each run, in seconds. A mutation may cause an endless loop in the product."""

_BROKEN: Final = re.compile(r"\b(AttributeError|NameError|TypeError|UnboundLocalError|ImportError)\b")
"""Errors of a mutation that no longer fits the product. A run that ends in one of them proves nothing."""


class UnsoundError(Exception):
    """A trial without a result: its seed or test fails without the mutation as well, or the mutation is broken."""


class TooLongError(UnsoundError):
    """A run that reached its time limit: the machine is busy, or the mutation causes an endless loop."""


@dataclass(frozen=True, slots=True)
class Caught:
    """``by``: the message of the check or test that caught the mutation; ``after``: the number of runs."""

    by: str
    after: str


class Trials:
    """Tries mutations, from any thread."""

    def __init__(self) -> None:
        self._sound: dict[str, str] = {}
        """The failure of a seed without any mutation; empty if the seed holds."""
        self._lock = threading.Lock()

    def check_tests(self) -> None:
        """Check that the tests that replace the simulator pass; UnsoundError with their output if they do not."""
        done = _run("pytest", "-p", "no:cacheprovider", *names_of_tests())
        if done.returncode:
            raise UnsoundError(f"without any mutation:\n{done.stdout[-4_000:]}{done.stderr[-2_000:]}")

    def run(self, mutation: Mutation) -> Caught | None:
        """Try a mutation; None if nothing catches it. UnsoundError if the trial has no result."""
        caught: Caught | None = None
        try:
            caught = self._simulated(mutation) if mutation.seeds else None
        except TooLongError:
            if not mutation.test:
                raise
        return _tested(mutation) if caught is None and mutation.test else caught

    def _simulated(self, mutation: Mutation) -> Caught | None:
        arguments = ("--seeds", str(mutation.seeds), "--seed", "1", "--processes", "1", "--mutation", mutation.name)
        done = _run("simulation", *arguments)
        if not done.returncode:
            return None
        failing = re.search(r"^seed (\d+) FAILS:\n((?:  .*\n)+)", done.stdout, re.MULTILINE)
        if failing is None:
            raise UnsoundError(f"the simulator ended by itself: {done.stderr[-200:]}")
        violations = [line.strip() for line in failing[2].splitlines()]
        genuine = [one for one in violations if not _BROKEN.search(one)]
        if not genuine:
            raise UnsoundError(f"it does not fit the product any more: {violations[0]}")
        seed = failing[1]
        if why := self._wrong_with(seed):
            raise UnsoundError(f"seed {seed} fails without it, too: {why}")
        named = [one for one in genuine if f"({mutation.guarantee})" in one]
        return Caught((named or genuine)[0], f"{seed} seed{'s' if seed != '1' else ''}")

    def _wrong_with(self, seed: str) -> str:
        with self._lock:
            if seed not in self._sound:
                done = _run("simulation", "--seeds", "1", "--seed", seed, "--processes", "1")
                self._sound[seed] = done.stdout[-200:] + done.stderr[-200:] if done.returncode else ""
            return self._sound[seed]


def names_of_tests() -> list[str]:
    """All tests that replace the simulator for some mutation."""
    return sorted({one.test for one in MUTATIONS.values() if one.test})


def _tested(mutation: Mutation) -> Caught | None:
    options = ("-x", "-p", "no:cacheprovider", "-p", "tests.mutating", "--mutation", mutation.name)
    done = _run("pytest", *options, mutation.test)
    if not done.returncode:
        return None
    said = [line[1:].strip() for line in done.stdout.splitlines() if line.startswith("E  ")]
    if done.returncode != 1 or not said:
        raise UnsoundError(f"{mutation.test} does not run with it: {done.stdout[-200:]}{done.stderr[-200:]}")
    if _BROKEN.search(said[0]):
        raise UnsoundError(f"it does not fit the product any more: {said[0]}")
    return Caught(f"{mutation.test}: {said[0]}", "1 test")


def _run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Python module; TooLongError if it takes too long."""
    try:
        return run_module(module, *arguments, seconds=_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise TooLongError(f"it takes more than {_SECONDS:.0f} s: {' '.join([module, *arguments])}") from error
