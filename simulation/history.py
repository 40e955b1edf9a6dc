"""What happened in a run, in order: for people to read when a seed fails, and to compare replays byte by byte."""

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
"""What the world may do to the product."""


class History(logging.Handler):
    """Lines of (virtual time, process, event). As a logging handler it takes in what the product logs."""

    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__(logging.INFO)
        self._loop = loop
        self._lines: list[str] = []
        self.faults: list[str] = []
        """What the product logged with a traceback at level ERROR: it contradicted itself."""

    def note(self, text: str, who: object = None) -> None:
        """Note an event; ``who`` is by default the process whose step it is."""
        who = PROCESS.get() if who is None else who
        self._lines.append(f"{self._loop.now:12.6f} {who or 'world'!s:16} {text}")

    def emit(self, record: logging.LogRecord) -> None:
        """Take in a log record."""
        text = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            text = f"{text}: {type(error).__name__}: {error}"
            if record.levelno >= logging.ERROR and not isinstance(error, EXPECTED):
                self.faults.append(f"{PROCESS.get()}: {text}")
        self.note(f"{record.levelname[0]} {text}")

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take in what the product logs meanwhile."""
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
        """By which two runs are compared."""
        return hashlib.sha256(self.text().encode()).hexdigest()
