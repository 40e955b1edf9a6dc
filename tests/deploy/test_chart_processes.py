"""What the chart renders, run as processes with a real etcd and Cassandra: commands, environment and probes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.local.cassandra import CassandraCluster
from deploy.local.etcd import EtcdCluster, EtcdTlsFiles
from tests.components import cassandra
from tests.deploy import certificates, chart
from tests.deploy.chart import of_kind, rendered
from tests.deploy.containers import Container, Loopback, Place, RunningContainer, places_of, running
from tests.patience import patience


def names(pods: Sequence[Container], places: Mapping[str, Place]) -> dict[str, str]:
    """The addresses in place of the names of pods, and of the masters' service."""
    named = {f"{one.name}.{chart.domain(one.role)}": places[one.name].address for one in pods}
    masters = [places[one.name].at(7433) for one in pods if one.role == "master"]
    return {**named, f"{chart.domain('master')}:7433": ",".join(masters)}


@contextmanager
def cluster(
    example: str, place: Path, workers: int = 0, more: Mapping[str, str] | None = None
) -> Iterator[dict[str, RunningContainer]]:
    """The pods of an example, with the services that it names. ``workers`` of them, and ``more`` settings, if given."""
    secured = example == "full"
    pods = chart.containers(rendered(example), {"cassandra-user/password": "cassandra"}, workers)
    pods = [replace(one, environment={**one.environment, **(more or {})}) for one in pods]
    places = places_of(pods, secured=secured)
    certificates.make(place / "tls", [])
    files = EtcdTlsFiles(*(place / "tls" / name for name in ("ca.crt", "tls.crt", "tls.key")))
    found = names(pods, places)
    found |= {f"/etc/millwheel/{name}": str(place / "tls") for name in ("tls", "coordinator-tls")}
    store = cassandra() if secured else CassandraCluster(place / "cassandra", quick_start=True)
    with EtcdCluster(place / "etcd", tls=files if secured else None) as etcd:
        for text in pods[0].environment["MILLWHEEL_COORDINATOR_ENDPOINTS"].split(","):
            found[text] = etcd.endpoints[0]
        for text in pods[0].environment["MILLWHEEL_STORE_CONTACT_POINTS"].split(","):
            found[text] = store.contact_points[0]
        try:
            store.start()
            with running(pods, places, Loopback(found), place) as made:
                yield made
        finally:
            if not secured:
                store.stop()


@pytest.mark.parametrize("example", ["full", pytest.param("trusted-network", marks=pytest.mark.long)])
def test_the_pods_serve_and_stop_as_written(example: str, tmp_path: Path) -> None:
    with cluster(example, tmp_path) as pods:
        for pod in pods.values():
            pod.until_ready()
        first = pods["mw-millwheel-master-0"]
        assert json.loads(first.run("millwheel", "cluster", "health", "-o", "json").stdout)["problems"] == []
        (tested,) = of_kind(rendered(example), "Pod")
        arguments = tested["spec"]["containers"][0]["args"]
        done = first.run(*first.container.command[:1], *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        for pod in pods.values():
            # On an idle machine half of the time must do.
            assert pod.stop() < pod.container.grace / 2 + patience(1)


def test_a_pod_that_waits_lives_and_is_not_ready(tmp_path: Path) -> None:
    """Without etcd and Cassandra no pod is restarted, and none gets calls."""
    pod = chart.containers(rendered("trusted-network"), {})[0]
    absent = {
        name: "127.0.0.1:9"
        for variable in ("MILLWHEEL_COORDINATOR_ENDPOINTS", "MILLWHEEL_STORE_CONTACT_POINTS")
        for name in pod.environment[variable].split(",")
    }
    places = places_of([pod], secured=False)
    found = {**absent, **names([pod], places)}
    with running([pod], places, Loopback(found), tmp_path) as made:
        one = made[pod.name]
        alive = {name: probe for name, probe in pod.probes.items() if name != "readiness"}
        assert {probe.path for probe in alive.values()} == {"/healthz"}
        one.until_ready(alive)
        one.until(lambda: "etcd at" in one.answers(pod.probes["readiness"]), patience(20), "it waits for nothing")
        one.stop()
