"""What is set wrongly is named, with what to do about it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from deploy.local.child import free_ports
from millwheel.store.cassandra import CassandraSettings, CassandraStore, StoreSettingsError
from millwheel.store.contract import StoreUnavailableError


@pytest.mark.parametrize("keyspace", ["", "Upper", "1st", "a-b", "a" * 49, "system; DROP KEYSPACE x"])
def test_a_keyspace_is_a_plain_name(keyspace: str) -> None:
    with pytest.raises(StoreSettingsError, match=r"store\.keyspace"):
        CassandraSettings(keyspace=keyspace)


@pytest.mark.parametrize("points", [(), ("127.0.0.1",), ("127.0.0.1:x",), (":9042",)])
def test_contact_points_have_host_and_port(points: tuple[str, ...]) -> None:
    with pytest.raises(StoreSettingsError, match=r"store\.contact_points"):
        CassandraSettings(points)


@pytest.mark.parametrize("replication", ["", "0", "three", "dc1", "dc1=", "dc1=3,dc2", "dc1=3,dc1=2"])
def test_replication_is_a_number_or_a_list(replication: str) -> None:
    with pytest.raises(StoreSettingsError, match=r"store\.replication"):
        CassandraSettings(replication=replication)


def test_replication_counts_for_the_data_centres_it_names() -> None:
    assert CassandraSettings(replication="3").replicas("here") == {"here": 3}
    assert CassandraSettings(replication="east=3, west=2").replicas("here") == {"east": 3, "west": 2}


def test_a_password_is_not_shown() -> None:
    assert "hunter2" not in repr(CassandraSettings(username="u", password="hunter2"))


def test_tls_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(StoreSettingsError, match=r"store\.tls_ca"):
        CassandraSettings(tls_ca=tmp_path / "missing.pem").tls()
    with pytest.raises(StoreSettingsError, match=r"store\.tls_ca"):
        CassandraSettings(tls_cert=tmp_path / "cert.pem").tls()


async def test_where_nobody_listens_it_says_where_and_that_it_is_tried_again() -> None:
    point = f"127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(StoreUnavailableError, match=rf"{point}.*store\.contact_points.*tried again"):
        await CassandraStore.open(CassandraSettings((point,), timeout_seconds=2.0))


async def test_a_name_without_an_address_is_said_so() -> None:
    with pytest.raises(StoreUnavailableError, match=r"store\.contact_points.*nowhere\.invalid"):
        await CassandraStore.open(CassandraSettings(("nowhere.invalid:9042",), timeout_seconds=2.0))


async def test_wrong_credentials_name_their_settings(settings: CassandraSettings) -> None:
    for wrong in (replace(settings, password="wrong"), replace(settings, username="", password="")):
        with pytest.raises(StoreSettingsError, match=r"store\.username and store\.password"):
            await CassandraStore.open(wrong)


async def test_an_unknown_data_centre_is_refused_with_those_there_are(settings: CassandraSettings) -> None:
    with pytest.raises(StoreSettingsError, match=r"store\.local_dc 'mars'.*datacenter1"):
        await CassandraStore.open(replace(settings, local_dc="mars"))
    with pytest.raises(StoreSettingsError, match=r"store\.replication.*mars.*datacenter1"):
        await CassandraStore.open(replace(settings, keyspace="never_made", replication="mars=1"))
