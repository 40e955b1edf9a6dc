"""What does not know forks, or may not have them, makes none, and the error says what to do (7.1; G1)."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from millwheel.client.control import ControlClient
from millwheel.config import ClusterSection
from millwheel.embedded.database import EmbeddedDatabase
from millwheel.model.formats import FORKS
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.rpc.v1 import snapshot_pb2_grpc
from millwheel.server.cluster_settings import ensure_cluster_settings
from tests.patience import patience
from tests.snapshots import words
from tests.snapshots.test_restored import snapshot
from tests.submitting import submit_copy
from tests.system.server import Server, run_cli

WORDS = Path(words.__file__).read_text()


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.timeout(60)
async def test_a_master_from_before_forks_restores_nothing() -> None:
    """Such a master does not know the field with the name, and has no call for forks."""
    restored: list[wire.RestoreSnapshotRequest] = []

    async def restore(request: wire.RestoreSnapshotRequest, _: object) -> wire.RestoreSnapshotResponse:
        restored.append(request)
        return wire.RestoreSnapshotResponse()

    handler = grpc.unary_unary_rpc_method_handler(
        restore,
        request_deserializer=wire.RestoreSnapshotRequest.FromString,
        response_serializer=wire.RestoreSnapshotResponse.SerializeToString,
    )
    server = grpc.aio.server()
    called = grpc.method_handlers_generic_handler("millwheel.v1.SnapshotService", {"RestoreSnapshot": handler})
    server.add_generic_rpc_handlers((called,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with ControlClient(f"127.0.0.1:{port}", deadline=patience(10)) as client:
            with pytest.raises(RequestError, match="from before forks") as refused:
                await client.restore_snapshot("/backups", "s", topology="next")
            assert (refused.value.reason, restored) == ("MASTER_TOO_OLD", [])
            await client.restore_snapshot("/backups", "s")
    finally:
        await server.stop(None)
    assert [one.name for one in restored] == ["s"]


@pytest.mark.timeout(120)
async def test_a_name_is_refused_where_it_would_be_ignored(tmp_path: Path) -> None:
    async with (
        Server(tmp_path / "db", tmp_path / "log") as server,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        request = wire.RestoreSnapshotRequest(location=str(tmp_path), name="s", topology="next")
        with pytest.raises(grpc.aio.AioRpcError, match="makes the original, and not 'next'") as refused:
            await snapshot_pb2_grpc.SnapshotServiceStub(channel).RestoreSnapshot(request)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.timeout(180)
async def test_only_a_fork_has_another_name_than_its_code(tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(WORDS.replace('Topology("words")', 'Topology("other")'))
    async with Server(tmp_path / "db", tmp_path / "log") as server:
        await submit_copy(server.address, words.__file__, "words", tmp_path)
        for command, *options in (("validate", "--update"), ("update", "--yes")):
            done = await run_cli(server.address, "topology", command, f"{other}:words", "--as", "words", *options)
            assert done.code != 0
            assert "topology 'words' is no fork" in done.err
        done = await run_cli(server.address, "topology", "validate", f"{words.__file__}:words", "--update")
        assert done.code == 0, done.err


@pytest.mark.timeout(240)
async def test_an_older_data_directory_gets_forks_by_an_option(tmp_path: Path) -> None:
    db, place = tmp_path / "db", str(tmp_path / "backups")
    async with await EmbeddedDatabase.open(db) as database:
        await ensure_cluster_settings(database.coordinator, ClusterSection(authority_shards=1, format=FORKS - 1))
    async with Server(db, tmp_path / "log") as server:
        await submit_copy(server.address, words.__file__, "words", tmp_path)
        assert (await snapshot(server, "create", "words", "--to", place, "--name", "s"))["name"] == "s"
        async with ControlClient(server.address, deadline=patience(30)) as client:
            with pytest.raises(RequestError, match="--cluster-format 2") as refused:
                await client.restore_snapshot(place, "s", topology="next")
            assert refused.value.code is FailureCode.FAILED_PRECONDITION
    for options in (("--cluster-format", str(FORKS)), ()):
        async with Server(db, tmp_path / "log", options=options) as server:
            name = f"next{len(options)}"
            assert (await snapshot(server, "restore", place, "s", "--as", name))["name"] == name
