"""Formats the log that daemons write to stderr: text for people, or JSON lines for programs. Times are UTC.

``log.info("ready", extra=fields(address="127.0.0.1:7433"))`` adds named values for programs.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from millwheel.config import LoggingSection

__all__ = ["JsonFormatter", "TextFormatter", "configure_logging", "fields", "log_crashes"]

_FIELDS: Final = "fields"


def fields(**values: object) -> dict[str, Any]:
    """Return the argument for ``extra=`` that adds named values to a log message."""
    return {_FIELDS: values}


def configure_logging(section: LoggingSection, **daemon: object) -> None:
    """Configure this process's log. Each JSON line also contains the values of ``daemon`` (role, process)."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(daemon) if section.format == "json" else TextFormatter())
    logging.basicConfig(level=section.level.upper(), handlers=[handler], force=True)
    log_crashes()


def log_crashes() -> None:
    """Let a crash in a library's native code leave on stderr where each thread was. It leaves nothing else.

    The lines are text, also in a log of JSON lines.
    """
    if sys.__stderr__ is not None and not faulthandler.is_enabled():
        faulthandler.enable(sys.__stderr__)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _values(record: logging.LogRecord) -> Mapping[str, object]:
    found: Mapping[str, object] = getattr(record, _FIELDS, {})
    return found


class JsonFormatter(logging.Formatter):
    """Formats one JSON object per line: time, level, logger, message, added values, and an exception's traceback."""

    def __init__(self, daemon: Mapping[str, object]) -> None:
        super().__init__()
        self._daemon = daemon

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._daemon,
            **_values(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """Formats time, level, logger and message, then the added values as ``name=value``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the lines of a traceback if there is one."""
        added = "".join(f" {name}={value}" for name, value in _values(record).items())
        line = f"{_time(record)} {record.levelname} {record.name}: {record.getMessage()}{added}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
