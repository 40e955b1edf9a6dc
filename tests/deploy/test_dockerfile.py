"""The Dockerfile agrees with the checkout, with the settings and with itself. tests/image carries it out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from millwheel.server.status_page import ProcessHealth, serve_status
from tests.deploy import dockerfile
from tests.deploy.dockerfile import FILE, copied, instructions
from tests.deploy.variables import unknown
from tests.house.tree import ROOT
from tests.patience import patience


def test_what_is_copied_is_there_and_not_ignored() -> None:
    admitted = [
        line[1:] for line in FILE.with_name("Dockerfile.dockerignore").read_text().splitlines() if line[0] == "!"
    ]
    assert sorted(admitted) == sorted(copied())
    assert [name for name in copied() if not (ROOT / name).exists()] == []


def test_the_build_has_every_source_of_the_compiled_tree() -> None:
    """tools/compile.sh names them, and its benchmarks run on what it makes."""
    (named,) = re.findall(r"^sources=\((.*)\)$", (ROOT / "tools" / "compile.sh").read_text(), re.MULTILINE)
    assert set(named.split()) <= set(copied())


def test_it_sets_variables_that_there_are() -> None:
    assert unknown(dockerfile.environment()) == set()


def test_the_image_has_what_the_settings_may_ask_of_a_daemon() -> None:
    """Traces need the extra. The other extras are for users' programs."""
    (extras,) = re.findall(r'"\$1\[([\w,]+)\]"', FILE.read_text())
    assert extras.split(",") == ["otel"]


def test_the_base_is_pinned_and_the_daemon_gets_signals() -> None:
    (base,) = {one.rest.split()[0] for one in instructions() if one.word == "FROM" and "/" in one.rest}
    assert re.search(r"@sha256:[0-9a-f]{64}$", base)
    assert dockerfile.entry_point() == ("millwheel",)
    assert dockerfile.user() > 0
    assert dockerfile.last("STOPSIGNAL").rest == "SIGTERM"


def checked(**environment: str) -> tuple[int, str]:
    """What the health check says of a container with these variables."""
    (program,) = dockerfile.health_check()
    given = {name: value for name, value in os.environ.items() if not name.startswith("MILLWHEEL_")}
    done = subprocess.run(
        [sys.executable, str(dockerfile.script(program))],
        env=given | environment,
        capture_output=True,
        text=True,
        timeout=patience(30),
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("waits_for", ["", "it waits for a reason"])
def test_the_health_check_says_what_readyz_says(waits_for: str) -> None:
    with ExitStack() as stack:
        health = ProcessHealth()
        health.waits_for = waits_for
        port = serve_status(stack, CollectorRegistry(), health, "127.0.0.1", 0)
        code, said = checked(MILLWHEEL_METRICS_LISTEN=f"0.0.0.0:{port}")
    assert (code, said.strip()) == (int(bool(waits_for)), waits_for or "ok")


def test_the_health_check_fails_where_nothing_answers(tmp_path: Path) -> None:
    for variable in ("MILLWHEEL_METRICS_LISTEN", "MILLWHEEL_RPC_LISTEN"):
        code, said = checked(**{variable: "127.0.0.1:9"})
        assert code == 1
        assert "127.0.0.1:9 does not answer" in said
