"""What ``millwheel inject http`` refuses before it starts."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from millwheel.cli.main import app


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (("--host", "0.0.0.0"), "there is no TLS"),
        (("--policy", "policy.toml"), "of no use without TLS"),
        (("--timestamp", "at"), "say how the field 'at' is written"),
        (("--unit", "s"), "it belongs to --timestamp"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    options: tuple[str, ...], wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    refused = CliRunner().invoke(app, ["inject", "http", "orders", *options])
    assert refused.exit_code == 2
    assert wrong in refused.output
