"""The end of an injector process that may run again: low watermarks should not wait for it (section 5.2)."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from millwheel.client.injector import Injector, InjectorSupersededError
from millwheel.sdk.errors import MillwheelError

__all__ = ["LEAVE_SECONDS", "step_aside"]

log = logging.getLogger("millwheel.injectors")

LEAVE_SECONDS: Final = 8.0
"""How long a process that ends tries to become idle. Container runtimes kill it 10 seconds later."""


async def step_aside(injector: Injector) -> None:
    """Make the process idle, so that no low watermark waits for it.

    If records are un-ACKed, they may not be delivered. Then the process stays active, and holds the low watermark.

    Args:
        injector: The injector, which may have stopped.
    """
    try:
        async with asyncio.timeout(LEAVE_SECONDS):
            await injector.idle()
            await injector.settle()
    except InjectorSupersededError:
        pass  # the name belongs to a newer process now
    except (MillwheelError, TimeoutError) as error:
        log.warning(
            "injector process %s stays active, and low watermarks wait for it (%s): run it again, or end it by "
            "`millwheel injector finish %s %s`",
            injector.process,
            str(error) or "records are not ACKed",
            injector.stream,
            injector.process,
        )
