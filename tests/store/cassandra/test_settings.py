"""An error names a wrong setting, and its remedy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cassandra import ConsistencyLevel
from cassandra.query import PreparedStatement

from deploy.local.child import free_ports
from millwheel.model.incarnation import IncarnationId
from millwheel.store.cassandra import CassandraSettings, CassandraStore, StoreSettingsError
from millwheel.store.contract import Append, PartId, StateRow, StoreUnavailableError
from tests.kept import kept
from tests.store.cassandra.conftest import OpenStore


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


@pytest.mark.guarantee("G3", section="6.2")
@pytest.mark.parametrize("level", ["one", "local_quorum", "QUORUM", ""])
def test_a_level_that_lets_two_owners_append_is_refused(level: str) -> None:
    with pytest.raises(StoreSettingsError, match=r"store\.write_consistency.*quorum, each_quorum, all"):
        CassandraSettings(write_consistency=level)


@pytest.mark.parametrize("level", ["each_quorum", "all"])
async def test_writes_are_acknowledged_by_the_set_number_of_replicas(
    settings: CassandraSettings, name: str, level: str, open_store: OpenStore
) -> None:
    store = await open_store(replace(settings, write_consistency=level))
    try:
        await store.create_journal(name)
        await store.fence(name, 1)
        await store.append(name, Append(1, 1, 0, (), b"entry"))
        await store.write_part(name, PartId("p", 1, 1), b"part")
        await store.write_states(IncarnationId(name), name, 1, [StateRow(b"k", 1, b"state")])
        assert await store.read_entries(name, 1, 1) == [b"entry"]
        assert await store.read_states(IncarnationId(name), [b"k"]) == [StateRow(b"k", 1, b"state")]
        statements = kept(store, PreparedStatement)
        levels = {one.consistency_level for one in statements if _writes(one)}
        assert levels == {getattr(ConsistencyLevel, level.upper())}
        (head,) = (one for one in statements if one.query_string.startswith("SELECT sequencer, "))
        assert head.consistency_level == ConsistencyLevel.SERIAL
    finally:
        await store.close()


def _writes(statement: PreparedStatement) -> bool:
    return not statement.query_string.startswith("SELECT")


async def test_an_address_without_a_server_is_named_and_retried() -> None:
    point = f"127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(StoreUnavailableError, match=rf"{point}.*store\.contact_points.*tried again"):
        await CassandraStore.open(CassandraSettings((point,), timeout_seconds=2.0))


async def test_a_name_without_an_address_is_reported() -> None:
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
