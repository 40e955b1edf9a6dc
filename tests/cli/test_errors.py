"""What the command line says of failures: as text, as objects for programs, and by exit codes."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from deploy.local.child import free_ports
from millwheel.cli.failing import describe, exit_code_of, output_of
from millwheel.cli.output import OutputFormat
from millwheel.client.owned_intervals import incarnation_of
from millwheel.errors import NotInstalledError
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import topology_pb2
from millwheel.sdk.errors import Problem
from millwheel.store.contract import StoreConflictError, StoreInUseError
from tests.cli.test_topology import GOOD, Cli
from tests.cli.test_topology import cli as cli  # the fixture
from tests.patience import patience
from tests.system.server import run_cli


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("topology list", OutputFormat.TABLE),
        ("topology list -o json", OutputFormat.JSON),
        ("topology list -ojson", OutputFormat.JSON),
        ("topology list --output=yaml", OutputFormat.YAML),
        ("topology list -o json --output table", OutputFormat.TABLE),
        ("topology graph x -o dot", OutputFormat.TABLE),
        ("topology list -o", OutputFormat.TABLE),
        ("key inspect a/b -- -ojson", OutputFormat.TABLE),
    ],
)
def test_the_output_format_is_known_before_the_command_is_parsed(words: str, expected: OutputFormat) -> None:
    assert output_of(words.split()) is expected


def test_an_error_is_an_object_with_its_parts() -> None:
    error = RequestError(FailureCode.NOT_FOUND, "no x", "make x", reason="X_UNKNOWN", problems=[Problem("a", "b")])
    assert describe(error) == {
        "error": {
            "exit_code": 3,
            "reason": "X_UNKNOWN",
            "message": "no x",
            "remedy": "make x",
            "problems": [{"where": "a", "message": "b"}],
        }
    }


def test_a_library_that_is_missing_is_no_fault_of_the_command() -> None:
    error = describe(NotInstalledError("entry 3: install openmillwheel[arrow]"))["error"]
    assert isinstance(error, dict)
    assert error["message"] == "entry 3: install openmillwheel[arrow]"


def test_a_directory_in_use_and_a_foreign_one_are_distinguished() -> None:
    assert exit_code_of(StoreInUseError("x")) == 4
    assert exit_code_of(StoreConflictError("x")) == 6


async def test_with_o_json_an_error_is_json_on_stderr(cli: Cli) -> None:
    for arguments, code, reason in (
        (("topology", "describe", "nix", "-o", "json"), 3, "TOPOLOGY_UNKNOWN"),
        (("topology", "list", "--adress", "x", "-o", "json"), 2, "USAGE"),
        (("topology", "list", "--address", "a b", "-o", "json"), 5, "ADDRESS_INVALID"),
    ):
        shown = await cli(*arguments)
        assert (shown.code, shown.out) == (code, "")
        error = json.loads(shown.err.splitlines()[-1])["error"]
        assert (error["exit_code"], error["reason"]) == (code, reason)
    shown = await cli("topology", "describe", "nix", "-o", "yaml")
    assert (shown.code, shown.err.splitlines()[:2]) == (3, ["error:", "  exit_code: 3"])


async def test_a_script_without_yes_is_asked_to_give_it(cli: Cli) -> None:
    await cli("topology", "submit", GOOD)
    shown = await cli("topology", "cancel", "sample")
    assert shown.code == 2
    assert "pass --yes" in shown.err
    answered = await cli("topology", "cancel", "sample", "-o", "json", typed="n\n")
    assert answered.code == 1
    assert json.loads(answered.err)["error"]["message"] == "aborted", "and no question before it"
    refused = await cli("topology", "cancel", "sample", "-o", "json")
    assert "pass --yes" in json.loads(refused.err)["error"]["message"]
    agreed = await cli("topology", "cancel", "sample", typed="y\n")
    assert agreed.out == "topology sample is cancelled (version 1)\n"


async def test_the_version_is_an_option_too(cli: Cli) -> None:
    assert (await cli("--version")).out == (await cli("version")).out != ""


async def test_submit_waits_for_a_server_for_a_limited_time() -> None:
    address = f"localhost:{free_ports(1)[0]}"
    at_once = await run_cli("", "topology", "submit", GOOD, "--address", address, "--patience", "0")
    assert (at_once.code, at_once.err.count("\n")) == (4, 1)
    waited = await run_cli("", "topology", "submit", GOOD, "--address", address, "--patience", "4", "-o", "json")
    notice, error = waited.err.splitlines()
    notice = re.sub(r"^waiting for \d+ s by now", "waiting", notice)
    assert notice.startswith("waiting, 4 s at most (--patience), for the cluster at localhost:")
    assert json.loads(error)["error"]["exit_code"] == waited.code == 4


async def test_submit_succeeds_once_the_server_has_started(tmp_path: Path) -> None:
    port, patient = free_ports(1)[0], ("--patience", f"{patience(30):g}")
    submit = asyncio.create_task(
        run_cli("", "topology", "submit", GOOD, "--address", f"localhost:{port}", *patient, timeout=patience(60))
    )
    server = await asyncio.create_subprocess_exec(
        *("sh", "-c", 'sleep 2; exec "$0" "$@"'),
        *("millwheel", "server", "start-dev", "--port", str(port), "--db", str(tmp_path / "db")),
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        shown = await submit
        assert (shown.code, shown.out) == (0, "topology sample is running (version 1)\n"), shown.err
    finally:
        server.terminate()
        assert await server.wait() == 0


def test_a_topology_of_sources_alone_shows_no_computations() -> None:
    record = catalog.TopologyRecord(spec=topology_pb2.TopologySpec(name="only"))
    with pytest.raises(RequestError, match="'only' has no computation 'x': it has no computations"):
        incarnation_of(record, "x")
