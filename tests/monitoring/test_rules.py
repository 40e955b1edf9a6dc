"""The alert rules are correct, each is tested to fire and not to fire, and the runbook has a section for each."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy.local.prometheus import CONFIGURATION, promtool
from millwheel.cli.main import app
from tests.house.tree import ROOT
from tests.monitoring.queries import alerts, boards, panels, rules
from tests.patience import patience

UNIT_TESTS = Path(__file__).with_name("rules_test.yml")
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
PARTS = ("**Meaning.**", "**See the cause.**", "**Mend it.**", "**Mended when**")

NOT_CAUSED = {
    "MillwheelDataDamaged": "tests/system/test_quarantine.py damages stores, and reads the rule's metrics",
    "MillwheelLogFull": "it takes 16 GiB: tests/worker/test_measures.py fills a log with a smaller cap",
    "MillwheelCertificateEnds": "it takes days: tests/access/test_certificates.py reads the rule's metrics",
    "MillwheelInjectorSilent": "tests/incidents: a stuck injector",
    "MillwheelStreamUnfed": "it takes six minutes: tests/master/test_unfed.py reads the rule's metric",
    "MillwheelDeadLettersExpire": "a letter must be five days old; test_letter_requests.py reads the rule's metric",
    "MillwheelSourceBehind": "it takes half an hour; test_queries.py reads the rule's metric of a source",
    "MillwheelSourceUnreadable": "it takes 15 minutes; tests/worker/test_connector_metrics.py reads its metrics",
    "MillwheelProcessSlow": "tests/incidents: a worker that swaps",
    "MillwheelLinkBroken": "tests/incidents: a cut link",
    "MillwheelStoreNodeDown": "tests/incidents: a lost node of Cassandra",
}
"""Alerts that no incident causes."""


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", CONFIGURATION / "prometheus.yml"),
        ("check", "rules", CONFIGURATION / "rules.yml"),
        ("test", "rules", UNIT_TESTS),
    ],
    ids=lambda arguments: " ".join(map(str, arguments[:2])),
)
def test_promtool_accepts(arguments: tuple[object, ...]) -> None:
    done = subprocess.run([promtool(), *map(str, arguments)], capture_output=True, text=True, timeout=patience(30))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr


def test_each_alert_is_tested_to_fire_and_not_to_fire() -> None:
    text = UNIT_TESTS.read_text()
    silent = set(re.findall(r"alertname: (\w+), exp_alerts: \[\]", text))
    firing = set(re.findall(r"alertname: (\w+)\n +exp_alerts:\n +- exp_labels", text))
    assert silent == firing == set(alerts())


def test_each_alert_is_caused_on_real_processes() -> None:
    """The incidents are long tests. This one sees that none is missing."""
    causing = [Path(__file__).with_name(name).read_text() for name in ("test_alerts.py", "test_cluster_alerts.py")]
    caused = {name for text in causing for name in re.findall(r"\.paged\(([^)]*)\)", text)}
    named = set(re.findall(r"Millwheel\w+", " ".join(caused)))
    assert named == set(alerts()) - NOT_CAUSED.keys()


def test_the_runbook_has_a_section_for_each_alert() -> None:
    headings = re.findall(r"^## (\w+)$", RUNBOOK, re.MULTILINE)
    assert headings == alerts(), "in the order of the rules"
    links = re.findall(r"runbook: docs/runbook.md#(\w+)", rules())
    assert links == [name.lower() for name in headings]
    for section in RUNBOOK.split("\n## ")[1:]:
        assert [section.count(part) for part in PARTS] == [1] * len(PARTS), section.partition("\n")[0]
    order = RUNBOOK.partition("\n## ")[0]
    assert sorted(re.findall(r"Millwheel\w+", order)) == sorted(alerts())


def test_the_runbook_names_panels_that_exist() -> None:
    titles = {panel["title"] for board in boards().values() for panel in panels(board)}
    named = set(re.findall(r"(?<!\*)\*([A-Z][^*:]+)\*(?!\*)", RUNBOOK))
    assert named
    assert {name for name in named if name not in titles} == set()


def test_the_runbook_names_commands_that_exist() -> None:
    commands = re.findall(r"`millwheel ([a-z -]+?)(?: [A-Z/\-][^`]*)?`", RUNBOOK)
    assert commands
    for command in set(commands):
        shown = CliRunner().invoke(app, [*command.split(), "--help"])
        assert shown.exit_code == 0, command
        assert "COMMAND [ARGS]" not in shown.output, f"{command} has no verb"
