"""The topology commands against a real server: their output and exit codes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millwheel.cli.extras import EXTRAS, is_installed
from millwheel.store.memory import MemoryStore
from tests.coordination.memory import MemoryCoordinator
from tests.house.tree import pyproject
from tests.master.replica import register_worker, replica
from tests.system.server import Finished, run_cli

SAMPLE = Path(__file__).with_name("sample.py")
GOOD = f"{SAMPLE}:good"


def changed(place: Path, old: str, new: str) -> str:
    """The sample topology with ``new`` in place of ``old``, in a module of its own."""
    source, module = SAMPLE.read_text(), place / "changed.py"
    assert old in source
    module.write_text(source.replace(old, new))
    return f"{module}:good"


class Cli:
    """Runs commands in processes of their own."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def __call__(self, *arguments: str, typed: str = "") -> Finished:
        return await run_cli(self.address, *arguments, typed=typed)


@pytest.fixture
async def cli() -> AsyncIterator[Cli]:
    coordinator, store = MemoryCoordinator(), MemoryStore()
    async with replica(coordinator, store) as (address, master):
        await register_worker(coordinator, "w1", "127.0.0.1:1")
        await master.leading()
        yield Cli(address)
    await coordinator.close()


async def test_a_topology_from_submission_to_its_end(cli: Cli) -> None:
    submitted = await cli("topology", "submit", GOOD)
    assert (submitted.code, submitted.out) == (0, "topology sample is running (version 1)\n")
    listed = await cli("topology", "list", "-o", "json")
    (row,) = json.loads(listed.out)
    assert (row["name"], row["state"], row["computations"]) == ("sample", "running", 1)
    described = await cli("topology", "describe", "sample")
    for part in ("counter", "['', +inf)", "w1", "queries", "Query", "sample:good", "sample/dead-letters", "default"):
        assert part in described.out
    taken = await cli("topology", "submit", GOOD)
    assert (taken.code, taken.out) == (6, "")
    assert "running already, with the same spec and code" in taken.err
    drawn = await cli("topology", "graph", "sample")
    assert drawn.out == (await cli("topology", "graph", GOOD)).out
    draining = await cli("topology", "drain", "sample", "--yes", "-o", "yaml")
    assert "state: draining" in draining.out
    missing = await cli("topology", "cancel", "nosuch")
    assert missing.code == 3, "it asks about no topology that is not there"
    asked = await cli("topology", "cancel", "sample", typed="n\n")
    assert (asked.code, asked.out.strip()) == (1, "")
    assert "delete its state for good?" in asked.err
    cancelled = await cli("topology", "cancel", "sample", "--yes")
    assert cancelled.out == "topology sample is cancelled (version 1)\n"
    listed = await cli("topology", "list")
    assert listed.out.splitlines()[-1] == "cancelled within the last day, and listed by --all: sample"
    assert "no topologies" in listed.out
    everything = await cli("topology", "list", "--all")
    assert everything.out.splitlines()[1].split()[:2] == ["sample", "cancelled"]
    (row,) = json.loads((await cli("topology", "list", "-o", "json")).out)
    assert row["state"] == "cancelled", "format 1 has all of them"


async def test_submitting_twice_under_one_request_id_is_one_submission(cli: Cli) -> None:
    first = await cli("topology", "submit", GOOD, "--request-id", "r1", "-o", "json")
    again = await cli("topology", "submit", GOOD, "--request-id", "r1", "-o", "json")
    assert json.loads(first.out) == json.loads(again.out)


async def test_an_update_without_changes_is_reported_as_such(cli: Cli) -> None:
    await cli("topology", "submit", GOOD)
    same = await cli("topology", "update", GOOD)
    assert (same.code, same.out) == (0, "topology sample is running (version 1)\n")
    assert same.err == "nothing changed: topology sample has this code and these declarations already\n"


RENAMED = ("good.add(Counter, ", 'good.add(Counter, name="tally", ')


@pytest.mark.parametrize(("typed", "code"), [("", 2), ("n\n", 1)])
async def test_an_update_asks_before_it_deletes_state(cli: Cli, tmp_path: Path, typed: str, code: int) -> None:
    await cli("topology", "submit", GOOD)
    refused = await cli("topology", "update", changed(tmp_path, *RENAMED), typed=typed)
    assert (refused.code, refused.out) == (code, "")
    assert "adds computation tally, without state\nremoves computation counter: its state is deleted\n" in refused.err
    assert "A renamed computation begins without state. Delete the state of counter of topology sample" in refused.err
    described = await cli("topology", "describe", "sample")
    assert "counter" in described.out
    assert "(version 1)" in described.out


async def test_an_update_tells_what_it_adds_and_removes(cli: Cli, tmp_path: Path) -> None:
    await cli("topology", "submit", GOOD)
    agreed = await cli("topology", "update", changed(tmp_path, *RENAMED), typed="y\n")
    assert (agreed.code, agreed.out) == (0, "topology sample is running (version 2)\n")
    back = await cli("topology", "update", GOOD, "--yes", "-o", "json")
    found = json.loads(back.out)
    assert (found["version"], found["added"], found["removed"]) == (3, ["counter"], ["tally"])
    assert back.err == ""


async def test_a_rollback_brings_the_version_before_back(cli: Cli, tmp_path: Path) -> None:
    await cli("topology", "submit", GOOD)
    none = await cli("topology", "rollback", "sample")
    assert (none.code, none.out) == (6, "")
    assert "topology 'sample' has no earlier version to go back to" in none.err
    await cli("topology", "update", changed(tmp_path, *RENAMED), "--yes")
    refused = await cli("topology", "rollback", "sample")
    assert (refused.code, refused.out) == (2, "")
    assert "removes computation tally: its state is deleted" in refused.err
    back = await cli("topology", "rollback", "sample", "--yes")
    assert (back.code, back.out) == (0, "topology sample is running (version 3, the same as version 1)\n")
    described = json.loads((await cli("topology", "describe", "sample", "-o", "json")).out)
    assert [one["name"] for one in described["computations"]] == ["counter"]
    forth = await cli("topology", "rollback", "sample", "--yes", "-o", "json")
    assert json.loads(forth.out)["version"] == 4


async def test_a_check_of_an_update_tells_what_it_would_delete(cli: Cli, tmp_path: Path) -> None:
    await cli("topology", "submit", GOOD)
    renamed = changed(tmp_path, *RENAMED)
    checked = await cli("topology", "validate", renamed, "--update")
    assert (checked.code, checked.out) == (0, "topology sample is valid\n")
    assert checked.err == "adds computation tally, without state\nremoves computation counter: its state is deleted\n"
    as_json = await cli("topology", "validate", renamed, "--update", "-o", "json")
    names = {"added": ["tally"], "removed": ["counter"], "deleted": ["counter"]}
    assert json.loads(as_json.out) == {"problems": [], **names}
    same = await cli("topology", "validate", GOOD, "--update")
    assert (same.out, same.err) == ("topology sample is valid\n", "")


async def test_an_update_of_an_unknown_topology_exits_3(cli: Cli) -> None:
    refused = await cli("topology", "update", GOOD)
    assert (refused.code, refused.out) == (3, "")
    assert "there is no topology 'sample'" in refused.err


async def test_an_unknown_name_is_reported_with_the_nearest_exits_3(cli: Cli) -> None:
    await cli("topology", "submit", GOOD)
    found = await cli("topology", "describe", "sampel")
    assert (found.code, found.out) == (3, "")
    assert "did you mean 'sample'" in found.err


async def test_all_mistakes_of_a_topology_are_reported_at_once_exits_5(cli: Cli, tmp_path: Path) -> None:
    bad = changed(tmp_path, 'inputs={"queries"', 'inputs={"querys"')
    for verb in ("validate", "submit"):
        shown = await cli("topology", verb, bad)
        assert shown.code == 5
        assert "querys" in shown.err
    as_json = await cli("topology", "validate", bad, "-o", "json")
    assert as_json.code == 5
    assert all(set(problem) == {"where", "message"} for problem in json.loads(as_json.out))


async def test_validate_checks_against_the_cluster_when_asked_to(cli: Cli, tmp_path: Path) -> None:
    assert (await cli("topology", "validate", GOOD, "--remote")).out == "topology sample is valid\n"
    await cli("topology", "submit", GOOD)
    other = changed(tmp_path, 'source("queries", Query)', 'source("queries", Query, id_slack=5)')
    shown = await cli("topology", "validate", other, "--remote")
    assert shown.code == 5
    assert "another topology of this name" in shown.err


@pytest.mark.parametrize(
    ("target", "part"),
    [
        ("no_such_module:topology", "no_such_module"),
        ("sample", "write package.module:attribute"),
        ("broken.py:topology", "broken on purpose"),
        (f"{SAMPLE}:Query", "Query"),
        (f"{SAMPLE}:goood", "goood"),
    ],
)
async def test_code_that_cannot_be_used_is_explained_without_a_server(
    target: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text('raise RuntimeError("this module is broken on purpose")')
    shown = await Cli("127.0.0.1:1")("topology", "validate", target)
    assert (shown.code, shown.out) == (5, "")
    assert part in shown.err


async def test_a_missing_server_exits_4_with_a_remedy() -> None:
    shown = await Cli("127.0.0.1:1")("topology", "list")
    assert (shown.code, shown.out) == (4, "")
    assert "cannot reach a MillWheel server at 127.0.0.1:1 (Connection refused)" in shown.err
    assert "start-dev" in shown.err


async def test_a_drain_that_times_out_names_what_it_waits_for(cli: Cli) -> None:
    await cli("topology", "submit", GOOD)
    shown = await cli("topology", "drain", "sample", "--yes", "--wait", "0.8")
    assert shown.code == 4
    assert "still drains after 0.8 s, waiting for" in shown.err
    assert "do not answer" in shown.err


async def test_a_wrong_command_line_exits_2() -> None:
    shown = await Cli("127.0.0.1:1")("topology", "lsit")
    assert shown.code == 2
    assert "Did you mean" in shown.err


async def test_the_version_is_shown_as_text_and_json() -> None:
    cli, version = Cli("127.0.0.1:1"), pyproject()["project"]["version"]
    assert (await cli("version")).out.startswith(f"millwheel {version} (Python 3.")
    found = json.loads((await cli("version", "-o", "json")).out)
    assert found["millwheel"] == version
    assert "arrow" in found["extras"]
    assert f"\nextras: {', '.join(found['extras'])}\n" in (await cli("version")).out


def test_all_extras_are_looked_for() -> None:
    assert set(EXTRAS) == set(pyproject()["project"]["optional-dependencies"]) - {"demo", "dev"}


def test_an_extra_without_its_modules_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, "kafka", ("no_such_module",))
    monkeypatch.setitem(EXTRAS, "otel", ("no_such_module.sdk",))
    assert [is_installed(extra) for extra in ("arrow", "kafka", "otel")] == [True, False, False]


async def test_submit_that_waits_names_what_does_not_run_and_exits_4(cli: Cli) -> None:
    waited = await cli("topology", "submit", GOOD, "--wait", "0.2")
    assert (waited.code, waited.out) == (4, "")
    assert "topology 'sample' is submitted, and 3 of its intervals do not run after 0.2 s" in waited.err
    assert "sample/counter ['', +inf) has been given to worker 'w1', which has not reported it" in waited.err
    listed = await cli("topology", "list")
    assert "running" in listed.out, "it stays submitted"
