"""The JSON schema of the chart's values. Helm checks values by it before it renders anything.

The settings of the daemons come from their declarations, so the chart takes each setting that there is, and no other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from millwheel.config import Setting, Settings, declared

__all__ = ["BY_CHART", "FILE", "text"]

Schema = dict[str, Any]

FILE: Final = Path(__file__).parent / "millwheel" / "values.schema.json"

BY_CHART: Final = frozenset(
    {
        *("rpc.listen", "rpc.advertise", "rpc.insecure", "rpc.tls_ca", "rpc.tls_cert", "rpc.tls_key"),
        *("metrics.listen", "master.ui_port", "worker.id", "worker.processes", "worker.packages"),
        *(f"{service}.tls_{what}" for service in ("coordinator", "store") for what in ("ca", "cert", "key")),
        # One process alone.
        *(f"{service}.{what}" for service in ("coordinator", "store") for what in ("kind", "path")),
    }
)
"""Settings that the chart sets itself, or that make no sense in a cluster."""

_TEXT: Final[Schema] = {"type": "string"}
_FLAG: Final[Schema] = {"type": "boolean"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 1}
_ANY: Final[Schema] = {"type": "object"}
_LIST: Final[Schema] = {"type": "array", "items": {"type": "object"}}
_QUANTITY: Final[Schema] = {"type": ["string", "integer"], "pattern": r"^[0-9]+(\.[0-9]+)?(m|[KMGT]i?)?$"}
_DURATION: Final[Schema] = {"type": "string", "pattern": r"^([0-9]+(h|m|s))+$"}


def text() -> str:
    """The text of values.schema.json."""
    return f"{json.dumps(_values(), indent=2, sort_keys=True)}\n"


def _closed(properties: Mapping[str, Any], required: tuple[str, ...] = ()) -> Schema:
    """An object that has these properties and no others."""
    schema = {"type": "object", "additionalProperties": False, "properties": dict(properties)}
    return schema | ({"required": list(required)} if required else {})


def _values() -> Schema:
    service_tls = _closed({"secretName": _TEXT, "clientCertificate": _FLAG})
    schema = _closed(
        {
            # Helm gives it to charts within charts.
            "global": _ANY,
            "image": _closed(
                {
                    "repository": {"type": "string", "minLength": 1},
                    "tag": _TEXT,
                    "digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
                    "pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
                }
            ),
            "imagePullSecrets": _LIST,
            "nameOverride": _TEXT,
            "fullnameOverride": _TEXT,
            "clusterDomain": {"type": "string", "minLength": 1},
            "settings": _settings(),
            "secretSettings": _secrets(),
            "tls": _closed({"secretName": _TEXT, "certManager": _cert_manager()}),
            "insecure": _FLAG,
            "extraVolumes": _LIST,
            "extraVolumeMounts": _LIST,
            "coordinatorTls": service_tls,
            "storeTls": service_tls,
            "master": _role({"replicas": _COUNT, "console": _FLAG}),
            "authority": _role({"replicas": _COUNT}),
            "worker": _role({"replicas": _COUNT, "packagesSize": _QUANTITY, "autoscaling": _autoscaling()}),
            "podDisruptionBudget": _closed({"enabled": _FLAG}),
            "networkPolicy": _closed(
                {"enabled": _FLAG}
                | dict.fromkeys(("clients", "monitoring", "coordinator", "store", "egress", "workerEgress"), _LIST)
            ),
            "monitoring": _monitoring(),
        }
    )
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of the chart millwheel", **schema}


def _cert_manager() -> Schema:
    issuer = _closed({"name": _TEXT, "kind": {"enum": ["Issuer", "ClusterIssuer"]}, "group": _TEXT})
    return _closed({"enabled": _FLAG, "issuerRef": issuer, "duration": _DURATION, "renewBefore": _DURATION})


def _role(more: Mapping[str, Schema]) -> Schema:
    resources = _closed(
        {what: {"type": "object", "additionalProperties": _QUANTITY} for what in ("requests", "limits")}
    )
    scheduling = {"nodeSelector": _ANY, "tolerations": _LIST, "affinity": _ANY, "podAnnotations": _ANY}
    return _closed({"tag": _TEXT, "resources": resources, **scheduling, **more})


def _autoscaling() -> Schema:
    return _closed(
        {
            "enabled": _FLAG,
            "prometheus": {"type": "string", "pattern": "^https?://"},
            # Not 0: no worker is left that could report a backlog.
            "minReplicas": _COUNT,
            "maxReplicas": _COUNT,
            "backlogRecords": _COUNT,
            "busyCores": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
            "pollingSeconds": _COUNT,
            "scaleDownSeconds": {"type": "integer", "minimum": 0, "maximum": 3600},
        }
    )


def _monitoring() -> Schema:
    labels = {"type": "object", "additionalProperties": _TEXT}
    dashboards = _closed({"enabled": _FLAG, "labels": labels})
    times = {"interval": _DURATION, "scrapeTimeout": _DURATION}
    return _closed({"enabled": _FLAG, "labels": labels, "dashboards": dashboards, **times})


def _settings() -> Schema:
    types = {
        f"{section.name}.{name}": kind
        for section in fields(Settings)
        for name, kind in get_type_hints(get_type_hints(Settings)[section.name]).items()
    }
    sections: dict[str, dict[str, Schema]] = {}
    for one in declared(Settings):
        if one.path not in BY_CHART and not one.secret:
            sections.setdefault(one.section, {})[one.name] = _setting(one, types[one.path])
    return _closed({section: _closed(settings) for section, settings in sections.items()})


def _setting(one: Setting, kind: Any) -> Schema:
    schema: Schema = {"description": one.meaning}
    if get_origin(kind) is Literal:
        return schema | {"enum": list(get_args(kind))}
    if kind == tuple[str, ...]:
        return schema | {"type": "array", "items": {"type": "string", "pattern": ":[0-9]+$"}}
    # The path of a file is one of a volume: extraVolumes.
    schema["type"] = {bool: "boolean", int: "integer", float: "number"}.get(kind, "string")
    if one.bounds is not None:
        schema["minimum"], schema["maximum"] = one.bounds
    return schema


def _secrets() -> Schema:
    source = _closed({"name": _TEXT, "key": _TEXT}, required=("name", "key"))
    sections: dict[str, dict[str, Schema]] = {}
    for one in declared(Settings):
        if one.secret or one.name == "username":
            sections.setdefault(one.section, {})[one.name] = source
    return _closed({section: _closed(settings) for section, settings in sections.items()})
