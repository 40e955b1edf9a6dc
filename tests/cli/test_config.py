"""``millwheel config`` shows each setting with its source, and names mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from millwheel.cli.failing import ExitCode, exit_code_of
from millwheel.cli.main import app
from millwheel.config import ConfigError


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["config", *arguments])


def test_show_prints_each_setting_and_its_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mw.toml"
    path.write_text('[store]\nkeyspace = "flights"\npassword = "hidden"\n')
    monkeypatch.setenv("MILLWHEEL_WORKER_PROCESSES", "4")
    arguments = ("show", "--config", str(path), "--coordinator-endpoints", "a:1,b:2")
    rows = {row["setting"]: row for row in json.loads(run(*arguments, "-o", "json").stdout)}
    assert (rows["store.keyspace"]["value"], rows["store.keyspace"]["from"]) == ("flights", f"{path}:2")
    assert rows["store.password"]["value"] == "********"
    assert rows["worker.processes"]["value"] == 4
    assert rows["worker.processes"]["from"] == "environment variable MILLWHEEL_WORKER_PROCESSES"
    assert rows["coordinator.endpoints"]["value"] == ["a:1", "b:2"]
    assert rows["coordinator.endpoints"]["from"] == "flag --coordinator-endpoints"
    assert rows["logging.format"]["from"] == "default"
    table = run(*arguments).stdout
    assert "hidden" not in table
    assert "a:1,b:2" in table


def test_check_names_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert run("check").exit_code == 0
    flags = [f"--rpc-tls-{name}={tmp_path / name}" for name in ("ca", "cert", "key")]
    result = run("check", *flags)
    assert isinstance(result.exception, ConfigError)
    assert exit_code_of(result.exception) == ExitCode.INVALID
    assert [problem.where for problem in result.exception.problems] == [
        "rpc.tls_ca (flag --rpc-tls-ca)",
        "rpc.tls_cert (flag --rpc-tls-cert)",
        "rpc.tls_key (flag --rpc-tls-key)",
    ]


def test_secrets_have_no_flags() -> None:
    shown = run("show", "--help").stdout
    assert "--store-username" in shown
    assert "password" not in shown.lower().replace("username", "")
