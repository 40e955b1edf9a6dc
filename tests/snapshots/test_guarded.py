"""What no client may do by a snapshot: reach other servers, have secrets shown, or bring unsigned code."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from millwheel.rpc.access.audit import summary
from millwheel.rpc.access.policy import AccessPolicy
from millwheel.rpc.access.signatures import refuse_unsigned
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.snapshots.location import MANIFEST, SnapshotLocation
from millwheel.snapshots.manifest import SNAPSHOT_FORMAT, encode_manifest
from millwheel.snapshots.restoring import restore_snapshot
from millwheel.store.memory import MemoryStore
from tests.coordination.memory import MemoryCoordinator
from tests.master.replica import replica

SECRET = "hunter2"


@pytest.mark.parametrize("place", ["http://169.254.169.254/latest", "https://example.com", "s3a://b", "ftp://x/y"])
def test_other_servers_than_object_stores_are_not_asked(place: str) -> None:
    with pytest.raises(RequestError, match="cannot begin with") as caught:
        SnapshotLocation(place)
    assert (caught.value.code, caught.value.reason) == (FailureCode.INVALID_ARGUMENT, "LOCATION_INVALID")


@pytest.mark.parametrize("place", [f"s3://key:{SECRET}@bucket/x", f"az://c/x?sig={SECRET}", f"gs://b/x#{SECRET}"])
def test_a_location_with_a_secret_is_refused_and_not_shown(place: str) -> None:
    with pytest.raises(RequestError, match="more than a host and a path") as caught:
        SnapshotLocation(place)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("place", [f"s3://key:{SECRET}@bucket/x", f"az://c/x?sig={SECRET}", f"s3://a@{SECRET}@b/x"])
def test_the_audit_log_has_no_secret_of_a_location(place: str) -> None:
    shown = summary(wire.CreateSnapshotRequest(topology="shop", location=place))
    assert SECRET not in str(shown)
    assert str(shown["location"]).endswith("/x")


async def test_unsigned_code_of_a_snapshot_is_refused(tmp_path: Path) -> None:
    signed = AccessPolicy(signers={"ada": Ed25519PrivateKey.generate().public_key().public_bytes_raw()})
    manifest = wire.SnapshotManifest(format=SNAPSHOT_FORMAT, name="s", cluster_format=1)
    manifest.topology.spec.name = "shop"
    manifest.topology.spec.code.digest = "ab" * 32
    folder = SnapshotLocation(str(tmp_path)).folder("s")
    await folder.write(MANIFEST, encode_manifest(manifest))
    store = MemoryStore()
    async with replica(MemoryCoordinator(), store) as (_, master):
        master.admit_code = lambda code: refuse_unsigned(signed, code.digest, code.signature)
        with pytest.raises(RequestError, match="is not signed") as caught:
            await restore_snapshot(master, folder, paused=True)
        assert caught.value.reason == "PACKAGE_NOT_SIGNED"
