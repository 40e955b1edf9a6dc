"""The services of Compose, run as processes in the order in which they depend on each other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml

from deploy.local import etcd, prometheus
from deploy.local.cassandra import CassandraCluster
from deploy.local.child import ChildProcess, free_ports
from tests.deploy import certificates
from tests.deploy.compose import FOLDER, Service, container, document, ours
from tests.deploy.containers import Loopback, Place, RunningContainer, places_of, running
from tests.patience import patience

pytestmark = pytest.mark.long

SETTINGS_OF_JAVA = ("paxos_variant", "commitlog_sync")


def own_etcd(service: Service, place: Path, port: int) -> ChildProcess:
    """etcd by the service's own command, on other ports and in another folder."""
    peer = free_ports(1)[0]
    changed = {"0.0.0.0:2379": f"127.0.0.1:{port}", "etcd:2379": f"127.0.0.1:{port}", ":2380": f":{peer}"}
    changed["/var/lib/etcd"] = str(place / "etcd")
    program, *arguments = service["command"]
    assert program == "etcd"
    return ChildProcess([str(etcd.install()), *map(Loopback(changed).text, arguments)], place / "etcd.log")


def own_prometheus(service: Service, place: Path, daemons: Sequence[RunningContainer]) -> prometheus.Prometheus:
    """Prometheus with the service's configuration, whose targets are the daemons' addresses."""
    groups = yaml.safe_load((FOLDER / "targets.yml").read_text())
    places = {one.container.name: one.place for one in daemons}

    def target(text: str) -> str:
        name, _, port = text.partition(":")
        return places[name].at(int(port))

    assert "../prometheus/rules.yml:/etc/prometheus/rules.yml:ro" in service["volumes"]
    return prometheus.Prometheus(
        place / "prometheus", {one["labels"]["role"]: [target(text) for text in one["targets"]] for one in groups}
    )


@contextmanager
def cluster(names: Sequence[str], place: Path) -> Iterator[dict[str, RunningContainer]]:
    """The daemons of the files, with the services on which they depend."""
    services = document(*names)["services"]
    made = [container(name, one) for name, one in ours(services).items()]
    secured = len(names) > 1
    places = places_of(made, secured=secured)
    port = free_ports(1)[0]
    store = CassandraCluster(place / "cassandra", quick_start=True)
    certificates.make(place / "tls", [])
    folder = {
        f"/run/secrets/{name}": str(place / "tls" / file)
        for name, file in {"ca.pem": "ca.crt", "node.pem": "tls.crt", "node.key": "tls.key"}.items()
    }
    found = {"etcd:2379": f"127.0.0.1:{port}", "cassandra:9042": store.contact_points[0], **folder}
    for one in made:
        found |= _named(one.name, places[one.name])
    with ExitStack() as stack:
        own = own_etcd(services["etcd"], place, port)
        stack.callback(own.stop, 2.0)
        own.start()
        stack.callback(store.stop)
        store.start()
        yield stack.enter_context(running(made, places, Loopback(found), place))


def _named(name: str, place: Place) -> dict[str, str]:
    return {f"{name}:7433": place.at(7433), name: place.address}


@pytest.mark.parametrize("names", [("compose.yaml",), ("compose.yaml", "compose.tls.yaml")])
def test_services_are_healthy_are_scraped_and_stop(names: tuple[str, ...], tmp_path: Path) -> None:
    with cluster(names, tmp_path) as daemons:
        for one in daemons.values():
            one.until_healthy()
        master = daemons["master-1"]
        assert json.loads(master.run("millwheel", "cluster", "health", "-o", "json").stdout)["problems"] == []
        if len(names) == 1:
            service = document(*names)["services"]["prometheus"]
            with own_prometheus(service, tmp_path, list(daemons.values())) as scraping:
                master.until(scraping.is_ready, patience(30), "Prometheus is not ready")
                up = "up{job='millwheel'} == 1 and millwheel_ready == 1"
                master.until(lambda: len(scraping.values(up)) == len(daemons), patience(30), "not all are scraped")
        for one in daemons.values():
            assert one.stop() < one.container.grace / 2 + patience(1)
            assert not one.is_healthy()
