"""Drives the models' rules from a seed. The histories are long, and have faults from begin to end.

Hypothesis' state machines explore and shrink short histories, many of which deliver no record. Here every history
delivers records, and a test asserts that the interesting cases come up.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.worker.dedup.receivers import KEYS, ReceiverRules
from tests.worker.dedup.test_batches_model import BatchesModel
from tests.worker.dedup.test_opaque_model import OpaqueModel
from tests.worker.dedup.test_positions_model import PositionsModel

SEEDS = 60
STEPS = 150
COMMON = ("CHECKED", "duplicate", "waiting", "replayed with ids")

Arguments = dict[str, Callable[[random.Random], Any]]
Rules = list[tuple[int, str, Arguments]]


def _number(low: int, high: int) -> Callable[[random.Random], int]:
    return lambda chance: chance.randint(low, high)


def _flag(share: float) -> Callable[[random.Random], bool]:
    return lambda chance: chance.random() < share


def _key(chance: random.Random) -> bytes:
    return chance.choice(KEYS)


def _some_keys(chance: random.Random) -> list[bytes]:
    return chance.choices(KEYS, k=chance.randint(1, 5))


_SOME = _number(0, 7)
_BITS = _number(1, 255)
_FLAGS = {"holes": _flag(0.5), "complete": _flag(0.5)}

RECEIVERS: Rules = [
    (12, "old_copy_arrives", {"at": lambda chance: int(chance.expovariate(0.05))}),
    (3, "take", {"at": _SOME, "count": _number(1, 6)}),
    (3, "commit", {"at": _SOME}),
    (4, "everything_commits", {"deaf": _flag(0.5)}),
    (1, "abandon", {"at": _SOME}),
    (3, "receiver_crashes", {"at": _SOME, "applied": _flag(0.5)}),
    (2, "receiver_writes_snapshot", {"at": _SOME}),
    (1, "receiver_splits", {"key": _key, "applied": _flag(0.5)}),
    (2, "receivers_merge", {"at": _SOME, "applied": _flag(0.5)}),
]
POSITIONS: Rules = [
    (10, "produce", {"at": _SOME, "gap": _number(0, 2), "key": _key, "producers": _some_keys}),
    (10, "owner_sends", {"at": _SOME, "key": _key, "bits": _BITS, **_FLAGS, "arrives": _flag(0.7)}),
    (5, "zombie_sends", {"at": _SOME, "key": _key, "bits": _BITS, **_FLAGS}),
    (6, "work_flows", {"bits": _BITS, **_FLAGS, "deaf": _flag(0.3)}),
    (5, "owner_writes_acks", {"at": _SOME}),
    (2, "sender_crashes", {"at": _SOME}),
    (1, "sender_splits", {"at": _SOME, "key": _key}),
    (1, "senders_merge", {"at": _SOME}),
    (2, "sequences_retire", {"at": _SOME}),
]
OPAQUE: Rules = [
    (10, "upstream_sends", {"ahead": _number(-8, 12), "outputs": _some_keys, "count": _number(1, 4)}),
    (6, "upstream_advances", {"by": _number(1, 20)}),
    (6, "owner_runs", {"bits": _BITS}),
    (6, "owner_sends", {"bits": _BITS, "arrives": _flag(0.6)}),
    (8, "work_flows", {"by": _number(0, 20), "deaf": _flag(0.3), "reported": _BITS}),
    (3, "zombie_runs_any_input", {"at": _SOME, "old": _number(0, 12)}),
    (4, "zombie_sends", {"at": _SOME, "bits": _BITS, "watermark": _flag(0.3)}),
    (3, "owner_commits", {}),
    (3, "owner_reports", {}),
    (2, "sender_crashes", {}),
    (5, "broadcast_arrives", {"at": _SOME, "old": _number(1, 3)}),
    (4, "receiver_seals", {"at": _SOME}),
    (3, "receiver_resolves", {"at": _SOME}),
]
BATCHES: Rules = [
    (6, "next_batch", {"record_keys": _some_keys}),
    (14, "task_sends", {"bits": _BITS, "arrives": _flag(0.7)}),
    (5, "old_batch_is_replayed", {"old": _number(1, 5), "bits": _BITS}),
]
MODELS: dict[str, tuple[type[ReceiverRules], Rules, tuple[str, ...]]] = {
    "positions": (PositionsModel, POSITIONS, (*COMMON, "UNKNOWN_SEQUENCE", "REFUSED_SEQUENCER", "complete")),
    "opaque": (
        OpaqueModel,
        OPAQUE,
        (
            *COMMON,
            "REFUSED_SEQUENCER",
            "SEND_AGAIN",
            "sealed",
            "confirmed",
            "collected",
            "collected while read",
            "zombie ran what a successor committed",
        ),
    ),
    "batches": (BatchesModel, BATCHES, COMMON),
}


def simulate(name: str, seed: int) -> Counter[str]:
    """Run the history of a seed. At its end no record is lost, repeated or kept. Returns the counts of its cases."""
    model, rules, _ = MODELS[name]
    chance = random.Random(f"{name} {seed}")
    machine = model()
    weights = [weight for weight, _, _ in [*rules, *RECEIVERS]]
    for _, rule, arguments in chance.choices([*rules, *RECEIVERS], weights, k=STEPS):
        if "zombie" not in rule or machine_has_zombies(machine):
            getattr(machine, rule)(**{argument: draw(chance) for argument, draw in arguments.items()})
    machine.model.reached["effects"] = len(machine.model.effects)
    machine.teardown()
    return machine.model.reached


def machine_has_zombies(machine: ReceiverRules) -> bool:
    """Whether there is a zombie yet."""
    return not isinstance(machine, OpaqueModel) or bool(machine.zombies and machine.upstream.all)


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.parametrize("name", MODELS)
def test_every_record_takes_effect_once_in_any_history(name: str) -> None:
    reached: Counter[str] = Counter()
    for seed in range(SEEDS):
        try:
            reached.update(simulate(name, seed))
        except AssertionError as error:
            raise AssertionError(f"{name}, seed {seed}: {error}") from error
    for place in (*MODELS[name][2], "effects"):
        assert reached[place] >= SEEDS // 6, f"{name} hardly reaches {place!r}: {reached}"
