"""The Helm chart agrees with the daemons' settings, ports and metrics, and with what Kubernetes takes."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from deploy.helm.schema import BY_CHART, FILE, text
from millwheel.config import Settings, declared
from millwheel.server.listen_address import listen_address_of
from tests.deploy import chart, dockerfile
from tests.deploy.chart import CHART, EXAMPLES, KUBERNETES, Manifest, of_kind, rendered
from tests.deploy.variables import unknown
from tests.house.tree import ROOT, pyproject

ROLES = ("master", "authority", "worker")
CUSTOM = {"Certificate", "PrometheusRule", "ScaledObject", "ServiceMonitor"}
PORTS = {role: (at.port, at.metrics_port) for role in ROLES for at in [listen_address_of(role, Settings())]}
SECRETS = {"cassandra-user/password": "secret"}


def values(name: str = "") -> dict[str, Any]:
    """The values of an example alone, or those that the chart has."""
    path = chart.values_of(name) if name else CHART / "values.yaml"
    return dict(yaml.safe_load(path.read_text()))


def pods(example: str) -> dict[str, Manifest]:
    """The pods of each role."""
    sets = of_kind(rendered(example), "StatefulSet")
    return {one["metadata"]["labels"]["app.kubernetes.io/component"]: one["spec"]["template"] for one in sets}


def by_role(example: str, kind: str) -> dict[str, Any]:
    """The specifications of a kind, by the role that ends the name."""
    return {one["metadata"]["name"].rpartition("-")[2]: one["spec"] for one in of_kind(rendered(example), kind)}


def test_the_schema_of_values_is_that_of_the_settings() -> None:
    assert FILE.read_text() == text(), "run python -m deploy.helm"


@pytest.mark.parametrize("example", ["", *EXAMPLES])
def test_values_fit_their_schema(example: str) -> None:
    jsonschema.validate(values(example), yaml.safe_load(text()))


@pytest.mark.parametrize(
    "wrong",
    [
        {"settings": {"stores": {}}},
        {"settings": {"store": {"key_space": "x"}}},
        {"settings": {"store": {"concurrent_writes": 0}}},
        {"settings": {"store": {"write_consistency": "one"}}},
        {"settings": {"store": {"password": "in the open"}}},
        {"settings": {"rpc": {"insecure": True}}},
        {"settings": {"coordinator": {"endpoints": ["etcd"]}}},
        {"worker": {"autoscaling": {"minReplicas": 0}}},
        {"workers": {}},
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_before_anything_runs(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, yaml.safe_load(text()))


def test_each_setting_is_the_users_or_the_charts() -> None:
    """The chart sets nothing but what the schema leaves out."""
    paths = {one.path for one in declared(Settings)}
    assert paths >= BY_CHART
    templates = "".join(path.read_text() for path in (CHART / "templates").rglob("*.tpl"))
    set_by_chart = set(re.findall(r"MILLWHEEL_([A-Z]+)_([A-Z_]+[A-Z])\n", templates)) - {("", "")}
    assert {f"{section}.{name}".lower() for section, name in set_by_chart} <= BY_CHART


@pytest.mark.parametrize("example", EXAMPLES)
def test_kubernetes_takes_each_manifest_strictly(example: str) -> None:
    for one in rendered(example):
        if one["kind"] not in CUSTOM:
            kubernetes_validate.validate(one, KUBERNETES, strict=True)


@pytest.mark.parametrize("example", EXAMPLES)
def test_containers_set_only_variables_that_there_are(example: str) -> None:
    for one in chart.containers(rendered(example), SECRETS):
        assert unknown(one.environment) == set(), one.name
    (health,) = of_kind(rendered(example), "Pod")
    assert unknown(variable["name"] for variable in health["spec"]["containers"][0]["env"]) == set()


@pytest.mark.parametrize("example", EXAMPLES)
def test_pods_keep_to_the_restricted_profile(example: str) -> None:
    specs = [one["spec"] for one in [*pods(example).values(), *of_kind(rendered(example), "Pod")]]
    for spec in specs:
        security = spec["securityContext"]
        assert security["runAsNonRoot"]
        assert security["runAsUser"] == security["fsGroup"] == dockerfile.user()
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not spec["automountServiceAccountToken"]
        assert {kind for volume in spec["volumes"] for kind in volume if kind != "name"} <= {"emptyDir", "secret"}
        for container in spec["containers"]:
            inner = container["securityContext"]
            assert not inner["allowPrivilegeEscalation"]
            assert inner["readOnlyRootFilesystem"]
            assert inner["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_worker_has_time_to_hand_over(example: str) -> None:
    drain = values(example)["settings"].get("worker", {}).get("drain_seconds", 20)
    assert pods(example)["worker"]["spec"]["terminationGracePeriodSeconds"] >= drain + 15


@pytest.mark.parametrize("example", EXAMPLES)
def test_services_and_policies_have_the_daemons_ports(example: str) -> None:
    manifests = rendered(example)
    for role, (service, metrics) in PORTS.items():
        found = {one["metadata"]["name"].rpartition("-")[2]: one["spec"] for one in of_kind(manifests, "Service")}
        assert {"service": service, "metrics": metrics}.items() <= {
            port["name"]: port["port"] for port in found[role]["ports"]
        }.items()
        policies = {
            one["metadata"]["name"].rpartition("-")[2]: one["spec"] for one in of_kind(manifests, "NetworkPolicy")
        }
        admitted = {port["port"] for rule in policies[role]["ingress"] for port in rule["ports"]}
        assert {service, metrics} <= admitted
        called = {port["port"] for rule in policies[role]["egress"] for port in rule["ports"]}
        assert {53, 2379, 9042, *(port for port, _ in PORTS.values())} <= called


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_selector_selects_the_pods_of_one_role(example: str) -> None:
    manifests = rendered(example)
    labels = {role: pod["metadata"]["labels"] for role, pod in pods(example).items()}
    for one in manifests:
        kind, spec = one["kind"], one.get("spec", {})
        selector = {
            "Service": lambda spec=spec: spec["selector"],
            "NetworkPolicy": lambda spec=spec: spec["podSelector"]["matchLabels"],
            "PodDisruptionBudget": lambda spec=spec: spec["selector"]["matchLabels"],
            "StatefulSet": lambda spec=spec: spec["selector"]["matchLabels"],
        }.get(kind)
        if selector is not None:
            selected = [role for role, given in labels.items() if selector().items() <= given.items()]
            assert selected == [one["metadata"]["name"].rpartition("-")[2]], f"{kind} {one['metadata']['name']}"


def test_pods_are_named_by_the_certificate() -> None:
    (certificate,) = of_kind(rendered("full"), "Certificate")
    names = certificate["spec"]["dnsNames"]
    for one in chart.containers(rendered("full"), SECRETS):
        pod, _, rest = one.environment["MILLWHEEL_RPC_ADVERTISE"].partition(".")
        assert pod == one.name
        assert f"*.{rest}" in names
        assert one.environment["MILLWHEEL_ADDRESS"].partition(":")[0] in names
    assert certificate["spec"]["secretName"] == pods("full")["worker"]["spec"]["volumes"][-1]["secret"]["secretName"]


def test_the_autoscaler_counts_what_the_workers_report() -> None:
    """Each metric of its queries is one of ours, with the labels that the scrape gives."""
    (scaled,) = of_kind(rendered("full"), "ScaledObject")
    assert scaled["spec"]["scaleTargetRef"]["name"] in {
        one["metadata"]["name"] for one in of_kind(rendered("full"), "StatefulSet") if "replicas" not in one["spec"]
    }
    queries = [trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]]
    metrics = {name for query in queries for name in re.findall(r"(\w+)\{", query)}
    assert metrics == {"millwheel_queued_records", "process_cpu_seconds_total"}
    (monitor,) = of_kind(rendered("full"), "ServiceMonitor")
    given = {one["targetLabel"] for one in monitor["spec"]["endpoints"][0]["relabelings"]} | {"namespace"}
    assert {label for query in queries for label in re.findall(r"(\w+)=\"", query)} <= given


def test_rules_and_dashboards_are_the_files_that_others_deploy() -> None:
    files = CHART / "files"
    assert (files / "rules.yml").resolve() == ROOT / "deploy" / "prometheus" / "rules.yml"
    assert (files / "dashboards").resolve() == ROOT / "deploy" / "grafana" / "dashboards"


def test_chart_and_image_have_the_version_of_the_project() -> None:
    version = pyproject()["project"]["version"]
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (about["version"], about["appVersion"]) == (version, version)
    assert f"VERSION={version}" in [one.rest for one in dockerfile.instructions() if one.word == "ARG"]
