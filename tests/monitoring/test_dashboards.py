"""The dashboards in the checkout are those that the code makes, and Grafana can load them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins

from deploy.grafana.files import FOLDER, dashboards
from deploy.grafana.panels import Dashboard
from tests.house.tree import ROOT
from tests.monitoring.queries import boards, panels

COLUMNS = 24


def test_the_dashboards_are_fresh() -> None:
    """If this fails: `python -m deploy.grafana`."""
    assert {path.name: path.read_text() for path in FOLDER.iterdir()} == dashboards()


def test_the_generator_writes_them(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "deploy.grafana", tmp_path], cwd=ROOT, check=True, capture_output=True)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dashboards()


def test_grafanas_model_reads_all_of_them() -> None:
    """The library's types come from Grafana's schemas: what it reads and writes again is what Grafana knows."""
    register_default_plugins()
    for name, board in boards().items():
        assert json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder)) == board, name


def test_a_panel_says_what_it_shows_and_from_where() -> None:
    for board in boards().values():
        for panel in panels(board):
            assert panel["title"], panel
            assert panel["description"], panel
            for part in (panel, *panel["targets"]):
                assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
            assert len({one["refId"] for one in panel["targets"]}) == len(panel["targets"])


def test_panels_have_ids_and_places_of_their_own() -> None:
    for name, board in boards().items():
        places = [one["gridPos"] for one in board["panels"]]
        assert all(one["x"] + one["w"] <= COLUMNS for one in places), name
        cells = Counter(
            (x, y)
            for one in places
            for x in range(one["x"], one["x"] + one["w"])
            for y in range(one["y"], one["y"] + one["h"])
        )
        assert max(cells.values()) == 1, f"panels of {name} overlap"
        assert len(cells) == COLUMNS * max(one["y"] + one["h"] for one in places), f"{name} has gaps"
        assert len({one["id"] for one in board["panels"]}) == len(board["panels"]), name
