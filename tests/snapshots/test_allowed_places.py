"""A master keeps snapshots in the places of ``master.snapshot_locations`` and in no others (G12)."""

from __future__ import annotations

from pathlib import Path

import pytest

from millwheel.client.control import ControlClient
from millwheel.config import ConfigError, load
from millwheel.config.locations import parse_place
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.snapshots.allowed import AllowedPlaces
from millwheel.snapshots.chunks import CHUNKS
from millwheel.snapshots.location import SnapshotLocation
from tests.daemons.together import together
from tests.patience import patience
from tests.snapshots import shop
from tests.submitting import submit_copy

URLS = AllowedPlaces(("s3://bucket/team/a", "gs://other"))


@pytest.mark.parametrize("text", ["s3://bucket/team/a", "s3://bucket/team/a/", "s3://bucket/team/a/b", "gs://other/x"])
def test_a_place_below_an_allowed_one_is_allowed(text: str) -> None:
    place = parse_place(text)
    assert URLS.resolve(place, text) == place


@pytest.mark.parametrize(
    "text",
    [
        *("s3://bucket", "s3://bucket/team", "s3://bucket/team/ab", "s3://bucket2/team/a"),
        *("gs://bucket/team/a", "az://other", "gs://Other", "/bucket/team/a", "file:///team/a"),
    ],
)
def test_a_place_beside_the_allowed_ones_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match=r"snapshot_locations allows s3://bucket/team/a, gs://other") as caught:
        SnapshotLocation(text, URLS)
    assert (caught.value.code, caught.value.reason) == (FailureCode.PERMISSION_DENIED, "LOCATION_NOT_ALLOWED")


@pytest.mark.parametrize(
    "text",
    [
        *(
            "s3://bucket/team/a/../b",
            "s3://bucket/team/a/%2e%2E/b",
            "s3://bucket/team/a/.\t./b",
            "s3://bucket/team/a%00",
        ),
        *("s3://bucket/team/a//b", "s3://bucket//team/a", "s3://bucket/team/a/./b", "s3://bucket/a%2f..%2fb"),
        *("s3://bucket/team/a\\..\\b", "file://host/backups", "/backups/\n"),
    ],
)
def test_no_url_can_be_read_in_two_ways(text: str) -> None:
    """The library of object stores drops '..' and control characters. The comparison would see another path."""
    with pytest.raises(RequestError) as caught:
        SnapshotLocation(text, URLS)
    assert caught.value.reason == "LOCATION_INVALID"


def test_without_the_setting_no_place_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"master\.snapshot_locations allows nowhere"):
        SnapshotLocation(str(tmp_path), AllowedPlaces(()))


def test_links_do_not_lead_out_of_an_allowed_place(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside / "real", outside / "s"):
        folder.mkdir(parents=True)
    (inside / "link").symlink_to(outside)
    (inside / "s").symlink_to(outside / "s")
    (tmp_path / "alias").symlink_to(inside)
    allowed = AllowedPlaces((str(inside),))
    for text in (f"{inside}/link", f"{inside}/../out", f"{inside}/real/../../out", f"{inside}2"):
        with pytest.raises(RequestError, match="may keep snapshots"):
            SnapshotLocation(text, allowed)
    with pytest.raises(RequestError, match="snapshot s is not where this master may keep snapshots"):
        SnapshotLocation(str(inside), allowed).folder("s")
    (inside / CHUNKS).symlink_to(outside)
    with pytest.raises(RequestError, match="is not where this master may keep snapshots"):
        SnapshotLocation(str(inside), allowed).shared(CHUNKS)
    assert SnapshotLocation(f"{tmp_path}/alias/real", allowed).folder("new")
    assert SnapshotLocation(str(inside), AllowedPlaces((f"{tmp_path}/alias",))).folder("new")


async def test_no_file_of_a_snapshot_is_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2")
    (tmp_path / "in" / "s").mkdir(parents=True)
    (tmp_path / "in" / "s" / "manifest.json").symlink_to(tmp_path / "secret")
    folder = SnapshotLocation(str(tmp_path / "in"), AllowedPlaces((str(tmp_path / "in"),))).folder("s")
    with pytest.raises(RequestError, match="symbolic link"):
        await folder.read("manifest.json")
    with pytest.raises(RequestError, match="symbolic link"):
        await folder.write("manifest.json", b"x")
    for path in ("../../secret", "..", "", "a/b", "/etc/passwd"):
        with pytest.raises(RequestError, match="no file of a snapshot has such a name"):
            await folder.read(path)
    assert (tmp_path / "secret").read_text() == "hunter2"


@pytest.mark.parametrize("value", ["backups", "http://host/x", "s3://key@bucket/x", "s3://bucket/a/../b"])
def test_the_setting_takes_places_alone(value: str) -> None:
    with pytest.raises(ConfigError, match="snapshot_locations"):
        load(None, {}, {"master.snapshot_locations": value})


async def test_masters_refuse_other_places(tmp_path: Path) -> None:
    allowed, other = tmp_path / "backups", tmp_path / "other"
    async with together(tmp_path, {"master.snapshot_locations": str(allowed)}) as cluster:
        await submit_copy(cluster.address, shop.__file__, "shop", tmp_path)
        async with ControlClient(cluster.address, deadline=patience(60)) as client:
            with pytest.raises(RequestError, match=r"master\.snapshot_locations") as refused:
                await client.create_snapshot("shop", str(other), "s")
            assert refused.value.code is FailureCode.PERMISSION_DENIED
            with pytest.raises(RequestError, match=r"master\.snapshot_locations"):
                await client.restore_snapshot(str(other), "s")
            assert not other.exists()
            await client.create_snapshot("shop", str(allowed), "s")
    assert (allowed / "s" / "manifest.json").exists()
