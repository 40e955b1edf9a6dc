"""The Helm chart as it is rendered for the values in its folder ``ci``.

The folder ``rendered`` has the output of Helm without alert rules and dashboards, so that only `make test-deploy` needs
Helm, which sees that the output is up to date. ``python -m tests.deploy.chart`` writes it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from deploy.local.go_tools import helm
from tests.deploy import dockerfile
from tests.deploy.containers import Container, HttpProbe

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "millwheel"
RENDERED = Path(__file__).parent / "rendered"
EXAMPLES = ("trusted-network", "full")
NAMESPACE, RELEASE = "streams", "mw"
# The newest release of Kubernetes that kubernetes-validate and users' clusters have.
KUBERNETES = "1.33"

Manifest = dict[str, Any]


def values_of(example: str) -> Path:
    """The file of an example's values."""
    return CHART / "ci" / f"{example}-values.yaml"


def template(example: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Run ``helm template``."""
    command = [str(helm()), "template", RELEASE, str(CHART), "--namespace", NAMESPACE, f"--kube-version={KUBERNETES}.0"]
    return subprocess.run([*command, "--values", str(values_of(example)), *more], capture_output=True, text=True)


def rendered(example: str) -> list[Manifest]:
    """The manifests of an example, as they are kept."""
    files = sorted((RENDERED / example).rglob("*.yaml"))
    return [one for file in files for one in yaml.safe_load_all(file.read_text()) if one]


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    """The manifests of one kind."""
    return [one for one in manifests if one["kind"] == kind]


def containers(manifests: list[Manifest], secrets: Mapping[str, str], workers: int = 0) -> list[Container]:
    """Every container of every pod, as Kubernetes would run it.

    ``secrets``: values by ``NAME/KEY``. ``workers``: pods of workers, in place of the number in the manifest.
    """
    found = []
    for owner in of_kind(manifests, "StatefulSet"):
        # An autoscaler decides where the manifest does not.
        replicas = owner["spec"].get("replicas", 2)
        if workers and owner["metadata"]["name"].endswith("-worker"):
            replicas = workers
        for number in range(replicas):
            pod = f"{owner['metadata']['name']}-{number}"
            spec = owner["spec"]["template"]["spec"]
            found += [_container(one, pod, spec, secrets) for one in spec["containers"]]
    return found


def domain(role: str) -> str:
    """The name of a role's headless service."""
    return f"{RELEASE}-millwheel-{role}.{NAMESPACE}.svc.cluster.local"


def _container(one: Manifest, pod: str, spec: Manifest, secrets: Mapping[str, str]) -> Container:
    environment: dict[str, str] = dict(dockerfile.environment())
    for variable in one["env"]:
        environment[variable["name"]] = _value(variable, environment, pod, secrets)
    ports = {port["name"]: port["containerPort"] for port in one["ports"]}
    probes = {
        name: HttpProbe(
            probe["httpGet"]["path"],
            ports[probe["httpGet"]["port"]],
            probe["httpGet"]["scheme"] == "HTTPS",
            probe["periodSeconds"] * probe["failureThreshold"],
        )
        for name in ("startup", "liveness", "readiness")
        if (probe := one[f"{name}Probe"])
    }
    command = (*one.get("command", dockerfile.entry_point()), *one["args"])
    return Container(pod, one["name"], command, environment, spec["terminationGracePeriodSeconds"], probes)


def _value(variable: Manifest, before: Mapping[str, str], pod: str, secrets: Mapping[str, str]) -> str:
    match variable:
        case {"value": str(text)}:
            # Kubernetes replaces the variables that stand before.
            return re.sub(r"\$\((\w+)\)", lambda found: before[found.group(1)], text)
        case {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}:
            return pod
        case {"valueFrom": {"secretKeyRef": {"name": name, "key": key}}}:
            return secrets[f"{name}/{key}"]
    raise AssertionError(variable)


def write(folder: Path = RENDERED) -> None:
    """Write what Helm renders, each template to a file of its own."""
    for example in EXAMPLES:
        shutil.rmtree(folder / example, ignore_errors=True)
        done = template(example, "--set", "monitoring.dashboards.enabled=false", "--output-dir", str(folder / example))
        assert done.returncode == 0, done.stderr
        for file in (folder / example).rglob("*.yaml"):
            parts = re.sub(r" +\n", "\n", file.read_text()).split("---\n")
            file.write_text("---\n".join(part for part in parts if "kind: PrometheusRule\n" not in part))


if __name__ == "__main__":
    write()
