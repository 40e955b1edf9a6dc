"""The services of Compose agree with the settings, with each other, and with what the other folders deploy."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from deploy.local.go_tools import module_folder
from millwheel.config import load
from tests.deploy import compose, dockerfile
from tests.deploy.compose import FOLDER, container, document, ours
from tests.deploy.variables import unknown
from tests.house.tree import ROOT, pyproject

FILES = (("compose.yaml",), ("compose.yaml", "compose.tls.yaml"))
ROLES = {"master": 2, "authority": 2, "worker": 2}


@pytest.mark.long
@pytest.mark.parametrize("name", ["compose.yaml", "compose.tls.yaml"])
def test_the_specification_of_compose_takes_it(name: str) -> None:
    schema = module_folder("github.com/compose-spec/compose-go/v2", "v2.16.2") / "schema" / "compose-spec.json"
    jsonschema.validate(document(name), yaml.safe_load(schema.read_text()))
    wrong = document(name)
    wrong["services"]["worker-1"]["healthchek"] = {}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, yaml.safe_load(schema.read_text()))


@pytest.mark.parametrize("files", FILES)
def test_each_role_runs_twice_with_settings_that_there_are(files: tuple[str, ...]) -> None:
    services = ours(document(*files)["services"])
    assert sorted(services) == sorted(f"{role}-{n + 1}" for role, count in ROLES.items() for n in range(count))
    for name, service in services.items():
        environment = service["environment"]
        assert unknown(environment) == set()
        settings = load(Path("/dev/null"), environment).settings
        assert service["command"] == [name.partition("-")[0], "run"]
        assert settings.rpc.advertise == name
        assert settings.rpc.insecure == (len(files) == 1)
        assert (settings.rpc.tls_cert is not None) == (len(files) == 2)


def test_what_services_name_is_there() -> None:
    whole = document("compose.yaml")
    services = whole["services"]
    for one in services.values():
        assert set(one.get("depends_on", {})) <= set(services)
        for volume in one.get("volumes", []):
            source = volume.partition(":")[0]
            assert source in whole["volumes"] or source.startswith("${PWD") or (FOLDER / source).exists(), volume
        assert set(one["networks"]) <= set(whole["networks"])
        assert one.get("healthcheck"), "depends_on waits for it"
    secured = document("compose.tls.yaml")
    assert {name for one in secured["services"].values() for name in one["secrets"]} == set(secured["secrets"])


def test_daemons_are_kept_small_and_get_time_to_hand_over() -> None:
    for name, one in ours(document("compose.yaml")["services"]).items():
        assert one["read_only"], name
        assert one["cap_drop"] == ["ALL"]
        assert one["security_opt"] == ["no-new-privileges:true"]
        assert container(name, one).grace >= 35
        assert one["stop_signal"] == dockerfile.last("STOPSIGNAL").rest
        mounts = " ".join(one["tmpfs"])
        assert ("/var/cache/millwheel" in mounts) == name.startswith("worker")
        assert f"uid={dockerfile.user()}" in mounts or "uid=" not in mounts


def test_only_loopback_reaches_the_ports() -> None:
    services = document("compose.yaml")["services"]
    ports = [port for one in services.values() for port in one.get("ports", [])]
    assert sorted(ports) == [f"127.0.0.1:{port}:{port}" for port in (3000, 8433, 9090)]
    assert document("compose.yaml")["networks"]["cluster"] == {"internal": True}


def test_prometheus_scrapes_each_daemon_once() -> None:
    groups = yaml.safe_load((FOLDER / "targets.yml").read_text())
    scraped = {target: group["labels"]["role"] for group in groups for target in group["targets"]}
    services = ours(document("compose.yaml")["services"])
    assert scraped == {
        f"{name}:{one['environment']['MILLWHEEL_METRICS_LISTEN'].partition(':')[2]}": name.partition("-")[0]
        for name, one in services.items()
    }


def test_only_addresses_and_tls_differ_from_what_others_deploy() -> None:
    def loaded(path: Path) -> Any:
        return yaml.safe_load(path.read_text())

    deployed = loaded(ROOT / "deploy/prometheus/prometheus.yml")
    secured = loaded(FOLDER / "prometheus.tls.yml")
    for name in ("scheme", "tls_config"):
        secured["scrape_configs"][0].pop(name)
    assert secured == deployed
    sources = [
        loaded(folder / "datasources" / "millwheel.yml") for folder in (ROOT / "deploy/grafana/provisioning", FOLDER)
    ]
    for source in sources:
        assert source["datasources"][0].pop("url").startswith("http")
    assert sources[0] == sources[1]


def test_images_are_of_one_version_each() -> None:
    images = [one["image"] for one in document("compose.yaml")["services"].values()]
    assert all(re.search(r":v?\d+\.\d+\.\d+$", image) for image in images)
    assert {image for image in images if image.startswith("millwheel:")} == {
        f"millwheel:{pyproject()['project']['version']}"
    }


def test_a_merge_keeps_what_the_second_file_does_not_name() -> None:
    """The reader of these tests merges as Compose does."""
    merged = document(*itertools.chain(*FILES[1:]))
    assert merged["services"]["worker-1"]["secrets"] == ["ca.pem", "node.pem", "node.key"]
    assert merged["services"]["prometheus"]["volumes"][-1].startswith("./prometheus.tls.yml:")
    assert compose.container("worker-1", merged["services"]["worker-1"]).role == "worker"
