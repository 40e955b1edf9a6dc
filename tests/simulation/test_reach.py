"""Each listed seed reaches an event. After a change of the simulator or the product, find other seeds if necessary.

``python -m tests.simulation.test_reach DIRECTORY`` runs these seeds, and writes their histories there.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from simulation.blocks import LIBRARY
from simulation.blocks.operators import examine_all
from simulation.clocks import find_places
from simulation.forking import run_apart, run_many
from simulation.replaying import run_module, with_fixed_hashes
from simulation.seed_plan import plan_for
from simulation.world import World
from tests.simulation.test_seeds import SEEDS

HELD_UP = [f"of what was asked of the {where} meanwhile" for where in ("store", "coordinator")]
BALANCED = [f"done for the load's sake: {what} of" for what in ("move", "split", "merge")]
TENDED = [" goes on: at w", " goes on: version"]
FORMS = ["lives=3", "present=False", "direct=True", "key='b'", "windows=True"]
FILES = ["is killed at a step of its own", "the tail is ended", "were handed over, to the end"]
CHECKPOINTS = ["is killed after its checkpoint, with records un-ACKed", "were handed over, to the end"]
SPARK = ["a second copy of a task of batch", "is in already"]
CODES = ["code=1", "code=2"]
LEFT = ["s0/r0 is retired", "query s0-r"]

REACHED = {
    "partitions": (102, [*HELD_UP, "only the other way"]),
    "balancing": (43, BALANCED),
    "operators": (6, TENDED),
    "leaving": (10, LEFT),
    "forms": (565, FORMS),
    "joining": (990020, ["their computation joined behind them"]),
    "returning": (4, ["the topology is cancelled", "the topology is back"]),
    "files": (13, FILES),
    "checkpoints": (13, CHECKPOINTS),
    "spark": (57, [*SPARK, "is killed before it can write the commit"]),
    "spark publishes": (44, ["is killed before it can publish"]),
    "codes": (256, CODES),
    "cassandra": (11, ["finished by another [1-9]", "late [1-9]"]),
    "unfinished writes": (106, ["glimpsed [1-9]"]),
    "power": (31, ["the power is cut", "the power is back", "with the power 1"]),
    "replays": (71, [r"letters replayed: .*\d", r"[1-9]\d* of \d+ are replayed"]),
    "an unknown pause": (3001, ["pause: not done: .* did not answer in time"]),
    "suspended": (15, ["w1.1             is suspended", "its clock stands"]),
}
"""Events: the seed that reaches it, and what its history then has."""


def run_seeds(directory: Path) -> None:
    """Run all these seeds. One process loads the modules for all, as ``python -m simulation`` does."""
    find_places()
    examine_all()
    for verdict in run_many(sorted({seed for seed, _ in REACHED.values()}), directory, 2):
        text = "".join(f"VIOLATION {one}\n" for one in verdict.violations) + verdict.history
        (directory / str(verdict.seed)).write_text(text)


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the histories of all these seeds."""
    directory = tmp_path_factory.mktemp("histories")
    done = run_module("tests.simulation.test_reach", str(directory))
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-4_000:]
    return directory


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("seed", "reported"), REACHED.values(), ids=REACHED)
def test_a_seed_reaches(seed: int, reported: list[str], histories: Path) -> None:
    """The seed holds, and its history has the event that it was chosen for."""
    history = (histories / str(seed)).read_text()
    assert not history.startswith("VIOLATION"), history[-20_000:]
    assert [one for one in reported if re.search(one, history) is None] == []


OFTEN = {"forms", "files", "spark", "returning", "sliding", "session", "two_phase"}
OFTEN |= {"columns", "files with a checkpoint", "late beginning", "bursts"}
"""Options that one seed of ten has."""


def _reached(seed: int) -> set[str]:
    """The bounds that a seed's plan puts under load."""
    plan = plan_for(seed)
    found = {f"weak {node['kind']}" for node in plan.nodes if not node["strong"]}
    found |= {node["arguments"][0] for node in plan.nodes if node["kind"] == LIBRARY}
    found |= {node["kind"] for node in plan.nodes if node["kind"] == "poison"}
    found |= {"poison on a cycle"} if "poison" in found and any(node["feedback"] for node in plan.nodes) else set()
    found |= {"bounds"} if plan.tuning["bounds"] else set()
    found |= {"files"} if any(reader.files for reader in plan.readers) else set()
    found |= {"returning"} if plan.returns_at else set()
    found |= {"replays"} if plan.replays else set()
    found |= {"connectors"} if plan.feed is not None else set()
    found |= {"spark"} if any(reader.spark for reader in plan.readers) else set()
    found |= {"files with a checkpoint"} if any(reader.checkpoint for reader in plan.readers) else set()
    found |= {"late beginning"} if any(reader.begins for reader in plan.readers) else set()
    found |= {"bursts"} if any(reader.burst > 1 for reader in plan.readers) else set()
    found |= {"files that grow"} if any(reader.grows for reader in plan.readers) else set()
    if plan.form is not None:
        found |= {"forms", "forms with keys that change"} if plan.form.rekeyed else {"forms"}
    return found | ({"spilled and divided"} if plan.splits and plan.merges and plan.tuning["ids"] else set())


def test_200_seeds_reach_what_is_there_for_them() -> None:
    """Each option has a probability of its own, and needs some property of the topology."""
    reached = Counter(what for seed in SEEDS for what in _reached(seed))
    wanted = {"weak window", "weak delay", "weak scatter", "tumbling", "sliding", "session", "two_phase"}
    wanted |= {"poison", "poison on a cycle", "bounds", "spilled and divided"}
    wanted |= {"forms with keys that change", "files that grow", "replays", "connectors"}
    assert {what for what in wanted if reached[what] < 3} == set(), reached
    assert {what for what in OFTEN if reached[what] < len(SEEDS) / 10} == set(), reached


def test_each_way_of_a_store_and_a_clock_is_in_one_of_five_seeds() -> None:
    """The real stores' code runs, and machines are suspended."""
    plans = [plan_for(seed) for seed in SEEDS]
    shares = Counter(plan.store for plan in plans)
    shares["suspended"] = sum(plan.suspensions > 0 for plan in plans)
    assert {way for way in ("cassandra", "embedded", "suspended") if shares[way] < len(SEEDS) / 5} == set(), shares


def test_a_permanent_standstill_is_noticed_soon_after_the_faults(tmp_path: Path) -> None:
    """A failure policy stops a computation, and no operator resumes it."""

    def untended(world: World) -> None:
        world.plan.tended = False

    verdict = run_apart(65, tmp_path, untended)
    assert verdict.violations[0].startswith("it does not end"), verdict.violations
    assert verdict.seconds < 90.0


@pytest.mark.parametrize("seed", [*range(50), 184044736])
def test_no_plan_has_a_consumer_that_stops_its_injector(seed: int) -> None:
    """A batch holds for longer than the allowed skew, so a changing part must not read both of their streams."""
    plan = plan_for(seed)
    skewed = {source["name"] for source in plan.sources if "skew" in source}
    held = any(node["kind"] == "batch" for node in plan.nodes)
    assert not (held and skewed & set(plan.form_streams))


if __name__ == "__main__":
    with_fixed_hashes("tests.simulation.test_reach")
    run_seeds(Path(sys.argv[1]))
