"""What `make test-faults` and `make soak` have in common: where they leave what they find, and how they end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

import uvloop

from deploy.local.apt import InstallError
from deploy.local.ending import causes, stoppable
from millwheel import MillwheelError

__all__ = ["BUILD", "run_to_end"]

BUILD: Final = Path(__file__).parents[2] / "build"
_EXPECTED: Final = (InstallError, RuntimeError, TimeoutError, MillwheelError)


def run_to_end(work: Coroutine[Any, Any, int], place: Path) -> int:
    """The exit status of ``work``, or of what became of it; its logs are in ``place``."""
    try:
        return uvloop.run(stoppable(work))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted: everything is stopped", file=sys.stderr)
        return 130
    except Exception as error:
        for cause in causes(error, _EXPECTED, "it took too long"):
            print(f"FAILED: {cause}; logs: {place}", file=sys.stderr)
        return 1
