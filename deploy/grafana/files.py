"""The dashboards as files of JSON, for Grafana's provisioning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.grafana.cluster import cluster
from deploy.grafana.computation import computation
from deploy.grafana.panels import Board
from deploy.grafana.store import store
from deploy.grafana.streams import streams
from deploy.grafana.topology import topology

__all__ = ["FOLDER", "dashboards"]

FOLDER: Final = Path(__file__).parent / "dashboards"
"""Where the files are. Grafana reads them there."""


def dashboards() -> dict[str, str]:
    """The text of each file, by its name."""
    return dict(_file(board) for board in (cluster(), topology(), computation(), streams(), store()))


def _file(board: Board) -> tuple[str, str]:
    made = board.build()
    # The library leaves these ids to Grafana. Links to a panel then change with it.
    for number, panel in enumerate(made.panels or (), 1):
        panel.id_val = number
    return f"{made.uid}.json", f"{json.dumps(made, cls=JSONEncoder, indent=2, sort_keys=True)}\n"
