"""Reports errors of commands: one message on stderr and a meaningful exit code. A traceback is never shown by default.

====  =========================================================================
code  meaning
====  =========================================================================
0     success
1     failure of another kind
2     the command line is wrong
3     the named object does not exist
4     the server cannot be reached, does not lead, or did not answer in time; for a server: a port or a directory that
      it needs is in use
5     the input is invalid: a topology with problems, a configuration with mistakes,
      a file with a line that is no record, a record that the stream does not take
6     a conflict: a name that is taken, a state that does not allow the command, a directory with other files
7     the server knows the caller not, or does not allow it: a certificate or a token is missing, wrong or expired, or
      has no role for the call
130   interrupted
====  =========================================================================

With ``-o json`` and ``-o yaml`` the message on stderr is an object. :func:`describe` builds it.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import typer

from millwheel.cli.output import OutputFormat, Plain, to_yaml
from millwheel.config import ConfigError
from millwheel.coordination.contract import CoordinatorError
from millwheel.errors import NotInstalledError
from millwheel.injectors.errors import SourceError
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.sdk.errors import (
    KeyExtractionError,
    MillwheelError,
    PackageError,
    TooLargeError,
    TopologyError,
    UsageError,
    ValueEncodeError,
)
from millwheel.store.contract import (
    CorruptValueError,
    StoreConflictError,
    StoreError,
    StoreInUseError,
    StoreUnavailableError,
)

__all__ = ["ExitCode", "describe", "exit_code_of", "explain", "output_of"]


class ExitCode(IntEnum):
    """The exit codes of the command. The module docstring explains them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNAVAILABLE = 4
    INVALID = 5
    CONFLICT = 6
    REFUSED = 7
    INTERRUPTED = 130


_BY_CODE: Final = {
    FailureCode.NOT_FOUND: ExitCode.NOT_FOUND,
    FailureCode.UNAVAILABLE: ExitCode.UNAVAILABLE,
    FailureCode.DEADLINE_EXCEEDED: ExitCode.UNAVAILABLE,
    FailureCode.INVALID_ARGUMENT: ExitCode.INVALID,
    FailureCode.RESOURCE_EXHAUSTED: ExitCode.INVALID,
    FailureCode.ALREADY_EXISTS: ExitCode.CONFLICT,
    FailureCode.FAILED_PRECONDITION: ExitCode.CONFLICT,
    FailureCode.ABORTED: ExitCode.CONFLICT,
    FailureCode.UNAUTHENTICATED: ExitCode.REFUSED,
    FailureCode.PERMISSION_DENIED: ExitCode.REFUSED,
}

_INVALID: Final = (
    *(TopologyError, PackageError, ConfigError, SourceError),
    *(KeyExtractionError, TooLargeError, UsageError, ValueEncodeError),
)
"""Errors of input: programs, configurations, files, and single records."""


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the exit code for an error."""
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    if _usage_message(error):
        return ExitCode.USAGE
    if isinstance(error, RequestError):
        return _BY_CODE.get(error.code, ExitCode.FAILED)
    if isinstance(error, _INVALID):
        return ExitCode.INVALID
    if isinstance(error, (StoreInUseError, StoreUnavailableError)):
        return ExitCode.UNAVAILABLE
    if isinstance(error, StoreConflictError):
        return ExitCode.CONFLICT
    return ExitCode.FAILED


def output_of(arguments: Sequence[str]) -> OutputFormat:
    """Return the value of the last -o in a command line, which may have other mistakes."""
    found = OutputFormat.TABLE
    for index, word in enumerate(arguments):
        if word == "--":
            break
        following = arguments[index + 1] if index + 1 < len(arguments) else ""
        value = following if word in ("-o", "--output") else _attached(word)
        if value in set(OutputFormat):
            found = OutputFormat(value)
    return found


def _attached(word: str) -> str:
    """Return the value in ``--output=json`` and ``-ojson``, or an empty text for other words."""
    if word.startswith("--output="):
        return word.partition("=")[2]
    return word[2:] if word.startswith("-o") else ""


def explain(error: BaseException, output: OutputFormat = OutputFormat.TABLE) -> None:
    """Print an error to stderr, with its traceback if MILLWHEEL_DEBUG=1 is set."""
    if output is OutputFormat.JSON:
        print(json.dumps(describe(error), ensure_ascii=False), file=sys.stderr)
    elif output is OutputFormat.YAML:
        sys.stderr.write(to_yaml(describe(error)))
    elif isinstance(error, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
    else:
        print(f"error: {_text(error)}", file=sys.stderr)
    if os.environ.get("MILLWHEEL_DEBUG") == "1":
        traceback.print_exception(error)


def describe(error: BaseException) -> dict[str, Plain]:
    """Return an error as an object, ``{"error": {...}}``.

    Returns:
        ``exit_code``; ``reason``, a constant in UPPER_SNAKE_CASE; ``message``; ``remedy``, which may be empty; and
        ``problems``, a list of objects with ``where`` and ``message``, for errors with several problems.
    """
    code = exit_code_of(error)
    message, remedy, reason = _text(error), "", code.name
    if isinstance(error, RequestError):
        message, remedy, reason = error.message, error.remedy, error.reason
    problems = getattr(error, "problems", ()) if isinstance(error, MillwheelError) else ()
    return {
        "error": {
            "exit_code": int(code),
            "reason": reason,
            "message": message,
            "remedy": remedy,
            "problems": [{"where": one.where, "message": one.message} for one in problems],
        }
    }


def _text(error: BaseException) -> str:
    if usage := _usage_message(error):
        return usage
    if isinstance(error, typer.Abort):
        return "aborted"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, CorruptValueError):
        return f"{error}: what is stored is damaged, and nothing was changed; restore it from a snapshot"
    if isinstance(error, (MillwheelError, NotInstalledError, StoreError, CoordinatorError)):
        return str(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    return f"{type(error).__name__}: {error} (a fault of millwheel's own; MILLWHEEL_DEBUG=1 shows more)"


def _usage_message(error: BaseException) -> str:
    """Return the message of a command line error, or an empty text for an error of another kind."""
    # Not every release of Typer has a public name for the base class of these errors.
    format_message = getattr(error, "format_message", None)
    return "" if format_message is None else str(format_message())
