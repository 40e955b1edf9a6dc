"""The services of deploy/compose, as Compose reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.deploy import dockerfile
from tests.deploy.containers import Container

FOLDER = Path(__file__).parents[2] / "deploy" / "compose"

Service = dict[str, Any]


def document(*names: str) -> dict[str, Any]:
    """The files, merged as Compose merges what these files have: objects by key, lists by adding, the rest replaced."""
    merged: dict[str, Any] = {}
    for name in names:
        merged = _merged(merged, yaml.safe_load((FOLDER / name).read_text()))
    return merged


def _merged(one: Any, other: Any) -> Any:
    if isinstance(one, dict) and isinstance(other, dict):
        both = {key: _merged(one[key], other[key]) for key in one.keys() & other.keys()}
        return {**one, **other, **both}
    return [*one, *other] if isinstance(one, list) and isinstance(other, list) else other


def ours(services: dict[str, Service]) -> dict[str, Service]:
    """The services that run our image and stay."""
    image = "millwheel:"
    return {name: one for name, one in services.items() if one["image"].startswith(image) and "profiles" not in one}


def container(name: str, service: Service) -> Container:
    """A service of ours, as an engine runs it."""
    kind, *check = service["healthcheck"]["test"]
    assert kind == "CMD"
    return Container(
        name,
        service["command"][0],
        (*dockerfile.entry_point(), *service["command"]),
        {**dockerfile.environment(), **service["environment"]},
        float(service["stop_grace_period"].removesuffix("s")),
        health_check=tuple(check),
    )
