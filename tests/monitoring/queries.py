"""The queries of the dashboards and rules, read from the files that are deployed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deploy.grafana.files import FOLDER
from deploy.local.prometheus import CONFIGURATION, Prometheus

VARIABLES = {"$__rate_interval": "30s", "$topology": "shop", "$computation": "count", "$stream": ".*"}
"""What the tests choose above a dashboard."""


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """A query, with the place where people see it."""

    place: str
    text: str

    def has_data(self, prometheus: Prometheus) -> bool:
        """Whether it gives a number. An error of the query fails the test."""
        return any(not math.isnan(value) for _, value in prometheus.values(self.text))


def boards() -> dict[str, dict[str, Any]]:
    """The dashboards, by the names of their files."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def panels(board: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The panels of a dashboard, without its headings."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def panel_queries() -> Iterator[PanelQuery]:
    """Every query of every panel."""
    for name, board in boards().items():
        for panel in panels(board):
            for target in panel["targets"]:
                place = f"{name.removeprefix('millwheel-')} / {panel['title']} / {target['legendFormat']}"
                yield PanelQuery(place.removesuffix(" / "), _filled(target["expr"]))


def variable_queries() -> Iterator[tuple[str, str, str]]:
    """Where a variable is, the series that its values come from, and the label."""
    for name, board in boards().items():
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
                assert found is not None, variable
                yield f"{name} / {variable['name']}", _filled(found[1]), found[2]


def rules() -> str:
    """The text of the alert rules."""
    return (CONFIGURATION / "rules.yml").read_text()


def alerts() -> list[str]:
    """The names of the alerts."""
    return re.findall(r"^ +- alert: (\w+)$", rules(), re.MULTILINE)


def _filled(text: str) -> str:
    for variable, value in VARIABLES.items():
        text = text.replace(variable, value)
    return text
