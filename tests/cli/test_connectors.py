"""``millwheel connectors list``: what installed packages announce as entry points."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millwheel.cli.connectors import app


def announce(folder: Path) -> None:
    """What the installation of a package leaves in a folder of the path."""
    about = folder / "shop_bus-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shop-bus\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text("[millwheel.connectors]\nbus = shop_bus:Topic\n")


def test_an_installed_package_announces_its_connectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    announce(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    found = json.loads(CliRunner().invoke(app, ["list", "-o", "json"]).stdout)
    assert {"name": "bus", "package": "shop-bus", "version": "1.2", "import": "shop_bus:Topic"} in found
    table = CliRunner().invoke(app, ["list"]).stdout
    assert "bus" in table
    assert "shop_bus:Topic" in table
