"""Replays of dead letters under every fault: killed, doubled, paused; lost, delayed and repeated deliveries (G1).

Invariant: a letter takes effect at most once. If a replay reports it as replayed, it took effect exactly once. A letter
that was discarded while it waited takes no effect. Who could break it: a batch that begins while a letter is in replay,
a record that is sent before its letter begins, or a confirmation of what is not ACKed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from millwheel.client.dead_letters import LetterState, ReplayReport
from millwheel.model.letters import LetterAction
from millwheel.worker.log.letters import LetterMarks
from tests.client.letter_world import LetterCourier, LetterWorld

SEEDS = 300
STEPS = 220
LETTERS = 8

Runs = dict["asyncio.Task[ReplayReport]", LetterCourier]


async def history(seed: int) -> Counter[str]:
    """One history: random steps, then a replay of all that is left without faults. Returns what it has reached."""
    world = LetterWorld(seed, LETTERS)
    runs: Runs = {}
    for _ in range(STEPS):
        await step(world, runs)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        end_runs(world, runs)
    for task in runs:
        task.cancel()
    await asyncio.gather(*runs, return_exceptions=True)
    await finish(world)
    return world.reached


async def step(world: LetterWorld, runs: Runs) -> None:
    chance, some = world.chance, frozenset(world.chance.sample(range(LETTERS), world.chance.randint(1, 4)))
    match chance.choices(
        ["go on", "replay", "kill", "arrive", "commit", "crash", "reshape", "discard", "force", "drop"],
        [30, 4, 2, 6, 10, 1, 3, 1, 1.5, 0.6],
    )[0]:
        case "go on" if world.gates:
            gate = world.gates.pop(chance.randrange(len(world.gates)))
            if not gate.done():
                gate.set_result(None)
        case "replay" if len(runs) < 3:
            courier = LetterCourier(world)
            runs[asyncio.ensure_future(courier.replay(some))] = courier
        case "kill" if runs:
            task = chance.choice(list(runs))
            task.cancel()
            world.reached["killed replays"] += 1
        case "arrive" if world.network:
            world.arrive(chance.choice(world.network))
        case "commit":
            world.commit(chance.choice(world.receivers))
        case "crash":
            world.crash(chance.choice(world.receivers))
        case "reshape":
            world.reshape()
        case "discard":
            world.change(LetterAction.DISCARD, sorted(some))
        case "force":
            world.change(LetterAction.DISCARD_ALSO_IN_REPLAY, sorted(some))
        case "drop":
            world.drop_oldest()


def end_runs(world: LetterWorld, runs: Runs) -> None:
    for task in [task for task in runs if task.done()]:
        del runs[task]
        if task.cancelled():
            continue
        for offset in task.result().replayed:
            assert world.effects[offset] == 1, f"letter {offset} is reported as replayed"
            world.reached["replayed"] += 1


async def finish(world: LetterWorld) -> None:
    """Without faults, a replay of all letters completes what others have begun."""
    courier = LetterCourier(world)
    task = asyncio.ensure_future(courier.replay(frozenset(range(LETTERS))))
    for _ in range(2_000):
        if task.done():
            break
        for gate in world.gates:
            if not gate.done():
                gate.set_result(None)
        world.gates.clear()
        for receiver in world.receivers:
            world.commit(receiver)
        await asyncio.sleep(0)
    report = await task
    if report.unconfirmed:  # the network lost four copies in succession
        return await finish(world)
    for offset in range(world.start, LETTERS):
        state = world.state(offset)
        assert state in (LetterState.REPLAYED, LetterState.DISCARDED)
        assert world.effects[offset] == 1 or state is LetterState.DISCARDED
    return None


def all_histories() -> Counter[str]:
    """What the histories of all seeds have reached together."""
    reached: Counter[str] = Counter()
    for seed in range(SEEDS):
        reached += asyncio.run(history(seed))
    return reached


@pytest.mark.guarantee("G1", section="6.1.1")
def test_each_letter_takes_effect_at_most_once() -> None:
    reached = all_histories()
    for case in (
        "killed replays",
        "duplicates",
        "copies of records in processing",
        "ACKs of a former batch",
        "replayed",
    ):
        assert reached[case] > 20, (case, reached)


def test_histories_show_a_batch_that_begins_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail."""
    apply = LetterMarks.apply

    def breaking(self: LetterMarks, changes: list[tuple[int, int, int]], start: int) -> None:
        batch = self.batch
        apply(self, changes, start)
        if any(action == LetterAction.BEGIN for action, _, _ in changes):
            self.batch = batch + 1

    monkeypatch.setattr(LetterMarks, "apply", breaking)
    with pytest.raises(AssertionError, match="takes effect twice"):
        all_histories()


async def until(world: LetterWorld, done: Callable[[], bool]) -> None:
    """Let everything go on, without faults, until ``done``."""
    while not done():
        for gate in [gate for gate in world.gates if not gate.done()]:
            gate.set_result(None)
        world.gates.clear()
        for receiver in world.receivers:
            world.commit(receiver)
        for _ in range(3):
            await asyncio.sleep(0)


async def test_a_replay_without_time_names_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.client.dead_letters.replaying.LETTERS_AT_ONCE", 2)
    world = LetterWorld(0, LETTERS)
    world.change(LetterAction.DISCARD, [1])
    meant = frozenset({0, 1, 2, 5, 6})
    short = asyncio.ensure_future(LetterCourier(world).replay(meant, lambda: True))
    await until(world, short.done)
    report = short.result()
    assert (report.replayed, report.left(meant)) == ([0, 2], [5, 6])
    rest = asyncio.ensure_future(LetterCourier(world).replay(frozenset(report.left(meant))))
    await until(world, rest.done)
    assert (rest.result().replayed, rest.result().left(meant)) == ([5, 6], [])


async def test_an_ack_of_a_former_batch_is_no_replay() -> None:
    """A replay pauses before its record arrives. Its letter is discarded all the same, and another batch begins."""
    world = LetterWorld(0, 4)
    paused = asyncio.ensure_future(LetterCourier(world).replay(frozenset({0})))
    await until(world, lambda: bool(world.network))
    (late,), gates = list(world.network), list(world.gates)
    world.gates.clear()
    world.change(LetterAction.DISCARD_ALSO_IN_REPLAY, [0])
    other = asyncio.ensure_future(LetterCourier(world).replay(frozenset({1})))
    await until(world, other.done)
    assert other.result().replayed == [1]
    world.arrive(late)
    assert late.sender.acked == {0}, "the receiver takes it for a duplicate"
    world.gates += gates
    await until(world, paused.done)
    report = paused.result()
    assert (report.replayed, report.elsewhere, world.effects[0]) == ([], [0], 0)
