"""The schemas of the kinds that Kubernetes does not have itself, from the projects that define them."""

from __future__ import annotations

from functools import cache
from typing import Any

import jsonschema
import yaml

from deploy.local.go_tools import module_folder

_KINDS = {
    "Certificate": ("github.com/cert-manager/cert-manager", "v1.21.2", "deploy/crds/*certificates.yaml"),
    "ScaledObject": ("github.com/kedacore/keda/v2", "v2.21.0", "config/crd/bases/keda.sh_scaledobjects.yaml"),
    **{
        kind: (
            "github.com/prometheus-operator/prometheus-operator",
            "v0.85.0",
            f"example/prometheus-operator-crd/monitoring.coreos.com_{kind.lower()}s.yaml",
        )
        for kind in ("PrometheusRule", "ServiceMonitor")
    },
}
KINDS = frozenset(_KINDS)


def check(manifest: dict[str, Any]) -> None:
    """Raise a ValidationError if the project's definition does not take it. A field that it does not know is one."""
    version = manifest["apiVersion"].partition("/")[2]
    jsonschema.validate(manifest, _schema(manifest["kind"], version))


@cache
def _schema(kind: str, version: str) -> dict[str, Any]:
    module, release, pattern = _KINDS[kind]
    for file in module_folder(module, release).glob(pattern):
        for definition in yaml.safe_load_all(file.read_text()):
            if definition["spec"]["names"]["kind"] == kind:
                (served,) = [one for one in definition["spec"]["versions"] if one["name"] == version and one["served"]]
                schema: dict[str, Any] = _closed(served["schema"]["openAPIV3Schema"])
                # Kubernetes knows these itself.
                schema["properties"] |= {"metadata": {"type": "object"}}
                return schema
    raise AssertionError(f"{module} {release} does not define {kind}")


def _closed(schema: Any) -> Any:
    """The schema, in which an object has only the properties that it names."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(value) for name, value in schema.items()}
    if closed.get("type") == "object" and isinstance(closed.get("properties"), dict):
        closed.setdefault("additionalProperties", bool(closed.get("x-kubernetes-preserve-unknown-fields", False)))
    if closed.pop("nullable", False) is True and isinstance(closed.get("type"), str):
        closed["type"] = [closed["type"], "null"]
    if isinstance(pattern := closed.get("pattern"), str) and "(?i)" in pattern:
        # Go takes the flag anywhere, Python at the beginning.
        closed["pattern"] = f"(?i){pattern.replace('(?i)', '')}"
    return closed
