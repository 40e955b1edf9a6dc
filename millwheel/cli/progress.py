"""Shows the progress of a long command: one updating line on a terminal, otherwise a new line every ten seconds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final, Generic, TextIO, TypeVar

from millwheel.model.wording import counted

__all__ = ["InjectionProgress", "ProgressText", "ReportProgress", "known_or_late", "showing"]

_TERMINAL_SECONDS: Final = 0.5
_LOG_SECONDS: Final = 10.0
_CLEAR: Final = "\r\x1b[2K"

Report = TypeVar("Report")


@dataclass(frozen=True, slots=True)
class InjectionProgress:
    """The counts of an injection so far."""

    records: int
    skipped: int
    late: int
    unacked: int


def known_or_late(count: int) -> str:
    """Return the text for a count of records behind the low watermark.

    A record that was sent again is one of them, also if it had taken effect in time. An ACK does not tell them apart.
    """
    return f"{count:,} known before or late" if count else "0 late"


class ProgressText:
    """Formats the progress lines. Pure: the caller passes the time, in seconds of a monotonic clock."""

    def __init__(self, terminal: bool, began: float) -> None:
        self.pause = _TERMINAL_SECONDS if terminal else _LOG_SECONDS
        """Seconds between two lines."""
        self._terminal = terminal
        self._last = (began, 0)

    def line(self, now: float, progress: InjectionProgress) -> str:
        """Return the progress text at time ``now``, with the rate since the last call."""
        before, records = self._last
        self._last = (now, progress.records)
        rate = (progress.records - records) / max(now - before, 1e-6)
        skipped = f", {counted(progress.skipped, 'line')} skipped" if progress.skipped else ""
        counts = f"{counted(progress.records, 'record')}, {rate:,.0f}/s, {known_or_late(progress.late)}"
        text = f"{counts}, {progress.unacked:,} not ACKed{skipped}"
        return f"{_CLEAR}{text}" if self._terminal else f"{text}\n"

    def message(self, text: str) -> str:
        """Return the text for a log message. The next progress line does not overwrite it."""
        return f"{_CLEAR}{text}\n" if self._terminal else f"{text}\n"

    def end(self) -> str:
        """Return the text that clears an unfinished line."""
        return _CLEAR if self._terminal else ""


class _Messages(logging.Handler):
    """Writes log messages between the progress lines."""

    def __init__(self, out: TextIO, text: ProgressText) -> None:
        super().__init__(logging.WARNING)
        self._out = out
        self._text = text

    def emit(self, record: logging.LogRecord) -> None:
        """Write a message on a separate line."""
        self._out.write(self._text.message(self.format(record)))
        self._out.flush()


@contextlib.asynccontextmanager
async def showing(read: Callable[[], InjectionProgress], out: TextIO) -> AsyncIterator[None]:
    """While the block runs, show on ``out`` its progress and the client library's log messages."""
    text = ProgressText(out.isatty(), time.monotonic())
    logger, handler = logging.getLogger("millwheel"), _Messages(out, text)
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    task = asyncio.create_task(_show(read, out, text), name="progress")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        logger.removeHandler(handler)
        logger.propagate = propagate
        out.write(text.end())
        out.flush()


async def _show(read: Callable[[], InjectionProgress], out: TextIO, text: ProgressText) -> None:
    while True:
        await asyncio.sleep(text.pause)
        out.write(text.line(time.monotonic(), read()))
        out.flush()


class ReportProgress(Generic[Report]):
    """Shows a report that grows, each time that its owner calls ``show``."""

    def __init__(self, out: TextIO, text: Callable[[Report], str]) -> None:
        self._out = out
        self._text = text
        self._terminal = out.isatty()
        self._next = time.monotonic() + (_TERMINAL_SECONDS if self._terminal else _LOG_SECONDS)

    def show(self, report: Report) -> None:
        """Show the report, unless it was shown shortly before."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (_TERMINAL_SECONDS if self._terminal else _LOG_SECONDS)
        self._out.write(f"{_CLEAR}{self._text(report)}" if self._terminal else f"{self._text(report)}\n")
        self._out.flush()

    def end(self) -> None:
        """Clear an unfinished line."""
        self._out.write(_CLEAR if self._terminal else "")
        self._out.flush()
