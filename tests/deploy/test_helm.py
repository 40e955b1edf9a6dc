"""The chart with Helm itself, and with the definitions of the kinds that other projects add to Kubernetes."""

from __future__ import annotations

import filecmp
import json
import subprocess
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from deploy.local.go_tools import helm
from tests.deploy import chart, custom_resources
from tests.deploy.chart import CHART, EXAMPLES, KUBERNETES, of_kind
from tests.house.tree import ROOT
from tests.patience import patience

pytestmark = pytest.mark.long


def lint(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(helm()), "lint", "--strict", str(CHART), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=patience(60))


@pytest.mark.parametrize("example", ["", *EXAMPLES])
def test_helm_finds_nothing_to_mend(example: str) -> None:
    done = lint(*(["--values", str(chart.values_of(example))] if example else []))
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout


def test_the_kept_manifests_are_what_helm_renders(tmp_path: Path) -> None:
    chart.write(tmp_path)
    kept = sorted(path.relative_to(chart.RENDERED) for path in chart.RENDERED.rglob("*.yaml"))
    assert kept == sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.yaml"))
    _, different, broken = filecmp.cmpfiles(chart.RENDERED, tmp_path, [str(path) for path in kept], shallow=False)
    assert (different, broken) == ([], []), "run python -m tests.deploy.chart"


def test_every_kind_is_valid_with_rules_and_dashboards() -> None:
    done = chart.template("full")
    manifests = [one for one in yaml.safe_load_all(done.stdout) if one]
    assert {one["kind"] for one in manifests} >= custom_resources.KINDS
    for one in manifests:
        if one["kind"] in custom_resources.KINDS:
            custom_resources.check(one)
        else:
            kubernetes_validate.validate(one, KUBERNETES, strict=True)
    (rule,) = of_kind(manifests, "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yml").read_text())
    dashboards = {name: text for one in of_kind(manifests, "ConfigMap") for name, text in one["data"].items()}
    folder = ROOT / "deploy" / "grafana" / "dashboards"
    assert {name: json.loads(text) for name, text in dashboards.items()} == {
        path.name: json.loads(path.read_text()) for path in folder.glob("*.json")
    }


def test_a_field_that_a_definition_does_not_know_is_found() -> None:
    (scaled,) = of_kind(chart.rendered("full"), "ScaledObject")
    scaled["spec"]["minReplicas"] = 2
    with pytest.raises(jsonschema.ValidationError):
        custom_resources.check(scaled)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("insecure=false", "Set tls.secretName or tls.certManager.enabled"),
        ("settings.store.contact_points=null", "Set settings.store.contact_points"),
        ("settings.coordinator.endpoints=null", "Set settings.coordinator.endpoints"),
        ("settings.store.key_space=x", "key_space"),
        ("settings.worker.drain_seconds=-1", "drain_seconds"),
    ],
)
def test_helm_says_which_value_is_missing_or_wrong(given: str, said: str) -> None:
    done = chart.template("trusted-network", "--set", given)
    assert done.returncode != 0
    assert said in done.stderr


def test_daemons_get_volumes_of_their_own() -> None:
    volume = ["--set", "extraVolumes[0].name=more", "--set", "extraVolumes[0].secret.secretName=more"]
    mount = ["--set", "extraVolumeMounts[0].name=more", "--set", "extraVolumeMounts[0].mountPath=/etc/more"]
    done = chart.template("full", *volume, *mount)
    for one in of_kind([one for one in yaml.safe_load_all(done.stdout) if one], "StatefulSet"):
        kubernetes_validate.validate(one, KUBERNETES, strict=True)
        spec = one["spec"]["template"]["spec"]
        assert spec["volumes"][-1] == {"name": "more", "secret": {"secretName": "more"}}
        assert spec["containers"][0]["volumeMounts"][-1] == {"name": "more", "mountPath": "/etc/more"}


def test_an_upgrade_holds_the_image_of_single_roles() -> None:
    tags = ["--set", "image.tag=0.2.0", "--set", "authority.tag=0.1.0", "--set", "worker.tag=0.1.0"]
    manifests = [one for one in yaml.safe_load_all(chart.template("trusted-network", *tags).stdout) if one]
    images = {
        container["name"]: container["image"].rpartition(":")[2]
        for one in of_kind(manifests, "StatefulSet")
        for container in one["spec"]["template"]["spec"]["containers"]
    }
    assert images == {"master": "0.2.0", "authority": "0.1.0", "worker": "0.1.0"}
