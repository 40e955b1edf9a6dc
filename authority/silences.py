"""Injector processes that hold the low watermark of their stream, and have reported nothing for a while. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from millwheel.authority.core import AuthorityCore
from millwheel.model.incarnation import INJECTOR_PREFIX, is_injector
from millwheel.rpc.silences import injector_silence

__all__ = ["SilentInjector", "silent_injectors"]


@dataclass(frozen=True, slots=True)
class SilentInjector:
    """A process without a report for ``silence`` microseconds. It is neither idle nor finished."""

    stream: str
    process: str
    silence: int


def silent_injectors(core: AuthorityCore, now: int, opened: int) -> list[SilentInjector]:
    """Return the silent injector processes that hold a low watermark.

    Args:
        core: The core of one shard.
        now: The time, by the core's clock.
        opened: When the shard was opened, by the same clock. A process that has not reported since then has been
            silent at least that long.
    """
    found = []
    for group in core.broadcasts():
        explained = core.explain(group, now) if is_injector(group) else None
        for row in explained.holding if explained is not None else ():
            silence = injector_silence(
                row.hold, idle=row.idle, sequencer=row.sequencer, silence=row.silence, served=now - opened
            )
            if silence is not None:
                found.append(SilentInjector(group.removeprefix(INJECTOR_PREFIX), str(row.member), silence))
    return found
