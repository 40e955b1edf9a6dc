"""One interval core with bounds of one to three, whose consumers take what they are sent only sometimes.

Nothing may be lost, made twice or out of order, no watermark may pass what has not come out, and nothing may stand
still: not even while consumers take nothing but what holds the watermark (G1, G5, G8, G10, G13, G15).
"""

from __future__ import annotations

from collections import Counter

import pytest

from millwheel.model.time import MAX_TIMESTAMP
from tests.interval.checks import check_quiet, check_soft_state, decoded
from tests.interval.tight_peers import Taking
from tests.interval.tight_programs import KINDS, outputs_of, timer_outputs_of
from tests.interval.tight_world import TightWorld

SEEDS, ROUNDS, STEPS = 30, 4, 45


def check_all_came_out(world: TightWorld) -> None:
    """Each production once, with its timestamp."""
    assert Counter(made.name for _, made, _ in world.out) == Counter(world.expected.keys())
    for _, made, stamp in world.out:
        assert world.expected[made.name] in (None, stamp), made


def check_order(world: TightWorld) -> None:
    """A key's hooks run in the order in which each sending interval sent, and what they made comes in theirs."""
    states = decoded(world, "mapper")
    for upstream in world.upstreams:
        for key, state in states.items():
            mine = {name for of, name in upstream.names if of == key}
            ran = [hook.split()[0] for hook in state.hooks if hook.split()[0] in mine]
            sent = [name for of, name in upstream.names if of == key]
            assert ran == sent if upstream.ordered else sorted(ran) == sorted(sent), (upstream.origin, key)
    if world.kind == "weak" and world.crashes:
        return  # what was sent before a crash may be made again in another order
    for key, state in states.items():
        for stream in ("out", "other"):
            made = [made.name for to, made, _ in world.out if made.key == key and to == stream]
            due = [name for hook in state.hooks for to, name in _made_by(hook) if to == stream]
            assert made == due, (key, stream)


def _made_by(hook: str) -> list[tuple[str, str]]:
    if hook.startswith("!"):
        return timer_outputs_of(hook[1:])
    name, records = hook.split()
    return outputs_of(name, int(records))


def run(kind: str, seed: int) -> None:
    world = TightWorld(kind, seed, late=seed % 2 == 1)
    for _ in range(ROUNDS):
        for _ in range(STEPS):
            world.step()
        world.rest_somehow()
    world.rest(Taking.HOLDERS, MAX_TIMESTAMP)
    check_quiet(world)
    check_all_came_out(world)
    if kind != "passing":
        check_soft_state(world)
        check_order(world)


@pytest.mark.guarantee("G8", section="4.5")
@pytest.mark.parametrize("kind", KINDS)
def test_all_comes_out_once_in_order_through_the_tightest_bounds(kind: str) -> None:
    for seed in range(SEEDS):
        try:
            run(kind, seed)
        except AssertionError as error:
            error.add_note(f"in the world of seed {seed}")
            raise
