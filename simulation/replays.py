"""A person who replays and discards dead letters while records flow (G1, docs/decisions/0033-dead-letters.md).

Some replays are killed midway, and some run beside another one. The last one completes what the others have begun, so
the log then says of each letter whether its record has taken effect. The checks compare that with the sinks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

from millwheel.client.dead_letters import DeadLetters, LetterFilter, LetterState
from millwheel.rpc.failures import RequestError
from simulation.clients import ADDRESS, ClientProgress
from simulation.process import Process
from simulation.world import Main, World

__all__ = ["replayer"]

_PATIENCE: Final = 5.0
"""Seconds that one action waits for the cluster."""
_BEGUN: Final = LetterFilter(states=frozenset({LetterState.IN_REPLAY}))


def replayer(progress: ClientProgress) -> Main:
    """Make some replays and discardings, then complete the replays."""

    async def main(world: World, process: Process) -> None:
        await progress.submitted.wait()
        plan, chance = world.plan, Random(f"replays {world.plan.seed} {process.life}")
        while progress.replays < plan.replays:
            progress.replays += 1
            await asyncio.sleep(chance.uniform(0.0, 2.4) * plan.span / plan.replays)
            await _noted(world, lambda: _act(world, chance))
        while not progress.replays_over.is_set():
            await _noted(world, lambda: _complete(world, progress))
            await asyncio.sleep(0.5)

    return main


async def _noted(world: World, act: Callable[[], Awaitable[str]]) -> None:
    try:
        world.history.note(await act())
    except (RequestError, TimeoutError) as error:
        world.history.note(f"letters: {error}")


async def _act(world: World, chance: Random) -> str:
    what = chance.choice(("replay", "replay", "killed", "two", "discard", "against"))
    # An impatient person gives up before the ACKs come.
    async with DeadLetters("simulated", ADDRESS, patience=chance.choice((0.1, _PATIENCE))) as letters:
        if what in ("discard", "against"):
            states = await letters.states()
            some = LetterFilter(frozenset(one for one in range(states.start, states.end) if chance.random() < 0.3))
            if what == "discard":
                return f"letters discarded: {(await letters.discard(some)).discarded}"
            done, report = await asyncio.gather(letters.discard(some), letters.replay(LetterFilter()))
            return f"letters replayed: {[report.replayed]}, discarded meanwhile: {done.discarded}"
        if what == "killed":
            async with asyncio.timeout(chance.choice((0.002, 0.02, 0.2, 2.0)) * chance.random()):
                await letters.replay(LetterFilter())
        reports = await asyncio.gather(*(letters.replay(LetterFilter()) for _ in range(1 + (what == "two"))))
        return f"letters replayed: {[report.replayed for report in reports]}"


async def _complete(world: World, progress: ClientProgress) -> str:
    """Complete the replays that have begun. Letters that come later are not replayed."""
    async with DeadLetters("simulated", ADDRESS, patience=_PATIENCE) as letters:
        await letters.replay(_BEGUN)
        states = await letters.states()
        if states.count(LetterState.IN_REPLAY):
            return "letters: some are still in replay"
        if states.start:
            world.violated(f"the log has dropped the letters below {states.start}")
        every = range(states.start, states.end)
        progress.replayed = frozenset(one for one in every if states.state(one) is LetterState.REPLAYED)
        progress.replays_over.set()
        return f"letters: {len(progress.replayed)} of {states.end} are replayed, the others have no effect"
