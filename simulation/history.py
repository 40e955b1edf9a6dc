"""The ordered history of a run. People read it when a seed fails, and replays are compared with it byte by byte."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from millwheel.coordination.contract import CoordinatorError
from millwheel.rpc.failures import RequestError
from millwheel.store.contract import StoreError
from simulation.loop import SimulatedLoop
from simulation.process import PROCESS

__all__ = ["EXPECTED", "History"]

EXPECTED: Final = (CoordinatorError, StoreError, RequestError, TimeoutError)
"""Errors that the simulated world may cause in the product."""


class History(logging.Handler):
    """Lines of (virtual time, process, event). As a logging handler, it also records the product's log messages."""

    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__(logging.INFO)
        self._loop = loop
        self._lines: list[str] = []
        self.faults: list[str] = []
        """Messages that the product logged with a traceback at level ERROR: they are contradictions in the product."""

    def note(self, text: str, who: object = None) -> None:
        """Record an event; ``who`` defaults to the process whose step is running."""
        who = PROCESS.get() if who is None else who
        self._lines.append(f"{self._loop.now:12.6f} {who or 'world'!s:16} {text}")

    def emit(self, record: logging.LogRecord) -> None:
        """Record a log message."""
        text = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            text = f"{text}: {type(error).__name__}: {error}"
            if record.levelno >= logging.ERROR and not isinstance(error, EXPECTED):
                self.faults.append(f"{PROCESS.get()}: {text}")
        self.note(f"{record.levelname[0]} {text}")

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Inside this context, record the product's log messages."""
        logger = logging.getLogger("millwheel")
        level, propagate = logger.level, logger.propagate
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)
            logger.setLevel(level)
            logger.propagate = propagate

    def text(self) -> str:
        """All lines."""
        return "\n".join(self._lines) + "\n"

    def digest(self) -> str:
        """A digest of all lines, to compare two runs."""
        return hashlib.sha256(self.text().encode()).hexdigest()
