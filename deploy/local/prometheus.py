"""Prometheus on loopback, with the configuration and the alert rules of deploy/prometheus."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from deploy.local import apt
from deploy.local.child import ChildProcess, free_ports

__all__ = ["CONFIGURATION", "Prometheus", "PrometheusQueryError", "install", "promtool"]

CONFIGURATION: Final = Path(__file__).resolve().parents[1] / "prometheus"
"""The folder of prometheus.yml and of the files that it names, as they are deployed."""

_PROGRAMS: Final = "programs"
_REQUEST_SECONDS: Final = 30.0


class PrometheusQueryError(Exception):
    """Prometheus refuses a query. The message has its reason."""


def install() -> Path:
    """The path of the prometheus program: the one on PATH, or Debian's, which is downloaded into the build folder."""
    return apt.program("prometheus", "prometheus")


def promtool() -> Path:
    """The path of the program that checks configurations and tests rules. It comes with Prometheus."""
    return apt.program("promtool", "prometheus")


class Prometheus:
    """A server that scrapes each second. Usable with ``with``. Its data and its log are in one folder.

    The kernel kills it when this process ends.
    """

    def __init__(
        self,
        place: Path,
        targets: Mapping[str, Sequence[str]],
        *,
        rules: Callable[[str], str] = lambda text: text,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            place: A folder for this server only.
            targets: The addresses of metrics pages, by role. Those of ``programs`` are not daemons.
            rules: Changes the text of rules.yml, for example to shorten times.
            labels: More labels of all series, as a cluster's discovery of targets gives them.
        """
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        """host:port of the HTTP API, and of the page for people."""
        self._place, self._targets, self._rules, self._labels = place, targets, rules, labels or {}
        self._process = ChildProcess(
            [
                *(str(install()), f"--config.file={place / 'prometheus.yml'}", f"--storage.tsdb.path={place / 'data'}"),
                *(f"--web.listen-address={self.address}", "--log.level=warn"),
            ],
            place / "log",
        )

    def __enter__(self) -> Prometheus:
        """Start the server. It answers a moment later."""
        self._place.mkdir(parents=True)
        for name in ("prometheus.yml", "rules.yml"):
            text = (CONFIGURATION / name).read_text()
            text = self._rules(text) if name == "rules.yml" else text.replace("_interval: 15s", "_interval: 1s")
            (self._place / name).write_text(text)
        daemons = {role: those for role, those in self._targets.items() if role != _PROGRAMS}
        groups = [{"targets": list(those), "labels": {"role": role, **self._labels}} for role, those in daemons.items()]
        (self._place / "targets.yml").write_text(json.dumps(groups))
        programs = [{"targets": list(self._targets.get(_PROGRAMS, ()))}]
        (self._place / "programs.yml").write_text(json.dumps(programs))
        self._process.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.stop()

    def is_ready(self) -> bool:
        """Whether it answers queries. RuntimeError with the end of its log if it has ended."""
        if not self._process.is_running:
            raise RuntimeError(f"prometheus has ended:\n{self._process.last_lines()}")
        try:
            urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=_REQUEST_SECONDS).close()
        except OSError:
            return False
        return True

    def values(self, query: str) -> list[tuple[dict[str, str], float]]:
        """The labels and the value of each series that a query gives now. It must give series, and not one number.

        Raises:
            PrometheusQueryError: The query fails.
        """
        return [(one["metric"], float(one["value"][1])) for one in self._get("query", query=query)["result"]]

    def label_values(self, label: str, series: str) -> list[str]:
        """The values that a label has in these series."""
        found: list[str] = self._get(f"label/{label}/values", **{"match[]": series})
        return found

    def rules(self) -> list[dict[str, Any]]:
        """The alert rules, as the API describes them."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def firing_alerts(self) -> list[dict[str, str]]:
        """The labels of each alert that fires. ``alertname`` is among them, and ``severity``."""
        return [one["labels"] for one in self._get("alerts")["alerts"] if one["state"] == "firing"]

    def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        return {labels["alertname"] for labels in self.firing_alerts()}

    def _get(self, what: str, **parameters: str) -> Any:
        url = f"http://{self.address}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=_REQUEST_SECONDS) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise PrometheusQueryError(f"{json.load(error).get('error')}: {parameters}") from error
