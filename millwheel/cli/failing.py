"""How commands fail: one clear message on stderr, and an exit code that means something; never a traceback.

====  =========================================================================
code  meaning
====  =========================================================================
0     it was done
1     it failed
2     the command line is wrong
3     what was named does not exist
4     the server cannot be reached, does not lead, or did not answer in time; for a server: a port or a directory that
      it needs is in use
5     what was given is invalid: a topology with problems, a configuration with mistakes,
      a file with a line that is no record
6     it clashes with what there is: a name that is taken, a state that does not allow it, a directory with other files
130   interrupted
====  =========================================================================

With ``-o json`` and ``-o yaml`` the message is an object, on stderr too: :func:`describe` makes it.
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
from millwheel.injectors.errors import SourceError
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.sdk.errors import MillwheelError, PackageError, TopologyError
from millwheel.store.contract import (
    CorruptValueError,
    StoreConflictError,
    StoreError,
    StoreInUseError,
    StoreUnavailableError,
)

__all__ = ["ExitCode", "describe", "exit_code_of", "explain", "output_of"]


class ExitCode(IntEnum):
    """What the command's exit code says."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNAVAILABLE = 4
    INVALID = 5
    CONFLICT = 6
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
}


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code that goes with an error."""
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    if _usage_message(error):
        return ExitCode.USAGE
    if isinstance(error, RequestError):
        return _BY_CODE.get(error.code, ExitCode.FAILED)
    if isinstance(error, (TopologyError, PackageError, ConfigError, SourceError)):
        return ExitCode.INVALID
    if isinstance(error, (StoreInUseError, StoreUnavailableError)):
        return ExitCode.UNAVAILABLE
    if isinstance(error, StoreConflictError):
        return ExitCode.CONFLICT
    return ExitCode.FAILED


def output_of(arguments: Sequence[str]) -> OutputFormat:
    """What -o asks for in a command line that may be wrong in other ways; the last one counts."""
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
    """The value in ``--output=json`` and ``-ojson``; empty for other words."""
    if word.startswith("--output="):
        return word.partition("=")[2]
    return word[2:] if word.startswith("-o") else ""


def explain(error: BaseException, output: OutputFormat = OutputFormat.TABLE) -> None:
    """Say on stderr what is wrong. An error that nobody foresaw shows where it was with MILLWHEEL_DEBUG=1."""
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
    """An error as an object: ``{"error": {...}}``.

    Returns:
        ``exit_code``; ``reason``, a constant in UPPER_SNAKE_CASE; ``message``; ``remedy``, which may be empty; and
        ``problems``, a list of ``where`` and ``message``, for errors that list several.
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
    if isinstance(error, (MillwheelError, StoreError, CoordinatorError)):
        return str(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    return f"{type(error).__name__}: {error} (a fault of millwheel's own; MILLWHEEL_DEBUG=1 shows more)"


def _usage_message(error: BaseException) -> str:
    """What is wrong with the command line; empty for an error of another kind."""
    # The base class of these errors has no public name in every release of typer.
    format_message = getattr(error, "format_message", None)
    return "" if format_message is None else str(format_message())
