"""How commands fail: one clear message on stderr, and an exit code that means something; never a traceback.

====  =========================================================================
code  meaning
====  =========================================================================
0     it was done
1     it failed
2     the command line is wrong
3     what was named does not exist
4     the server cannot be reached, does not lead, or did not answer in time
5     what was given is invalid: a topology with problems, a configuration with mistakes
6     it clashes with what there is: a name that is taken, a state that does not allow it
130   interrupted
====  =========================================================================
"""

from __future__ import annotations

import os
import sys
import traceback
from enum import IntEnum
from typing import Final

from millwheel.config import ConfigError
from millwheel.coordination.contract import CoordinatorError
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.sdk.errors import MillwheelError, PackageError, TopologyError
from millwheel.store.contract import CorruptValueError, StoreError

__all__ = ["ExitCode", "exit_code_of", "explain"]


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
    if isinstance(error, RequestError):
        return _BY_CODE.get(error.code, ExitCode.FAILED)
    if isinstance(error, (TopologyError, PackageError, ConfigError)):
        return ExitCode.INVALID
    return ExitCode.FAILED


def explain(error: BaseException) -> None:
    """Say on stderr what is wrong. An error that nobody foresaw shows where it was with MILLWHEEL_DEBUG=1."""
    if isinstance(error, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
    elif isinstance(error, CorruptValueError):
        print(
            f"error: {error}: what is stored is damaged, and nothing was changed; restore it from a snapshot",
            file=sys.stderr,
        )
    elif isinstance(error, (MillwheelError, StoreError, CoordinatorError)):
        print(f"error: {error}", file=sys.stderr)
    elif isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}", file=sys.stderr)
    else:
        print(
            f"error: {type(error).__name__}: {error} (a fault of millwheel's own; MILLWHEEL_DEBUG=1 shows more)",
            file=sys.stderr,
        )
    if os.environ.get("MILLWHEEL_DEBUG") == "1":
        traceback.print_exception(error)
