"""The coordinator on etcd beyond its contract: limits, history, leases by its own clock, users, TLS, errors."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from deploy.local.child import free_ports
from deploy.local.etcd import EtcdCluster, EtcdTlsFiles
from millwheel.coordination.contract import (
    CompactedError,
    Compare,
    CoordinatorUnavailableError,
    DamagedValueError,
    KeyChange,
    LeaseExpiredError,
    Put,
    TransactionTooLargeError,
)
from millwheel.coordination.etcd import EtcdCoordinator, EtcdSettings
from millwheel.coordination.etcd.renewal_calls import RenewalCalls
from millwheel.model.envelope import wrap
from tests.components import etcd
from tests.patience import patience
from tests.relay import CuttingProxy

CERTIFICATES = Path(__file__).parents[1] / "rpc" / "certificates"
TLS = EtcdTlsFiles(CERTIFICATES / "one-ca.pem", CERTIFICATES / "one.pem", CERTIFICATES / "one.key")


@asynccontextmanager
async def opened(settings: EtcdSettings, **more: Any) -> AsyncIterator[EtcdCoordinator]:
    coordinator = EtcdCoordinator(settings, **more)
    try:
        yield coordinator
    finally:
        await coordinator.close()


@pytest.fixture
async def coordinator(tmp_path: Path) -> AsyncIterator[EtcdCoordinator]:
    async with opened(EtcdSettings(etcd().endpoints, prefix=f"etcd{tmp_path}/")) as made:
        yield made


# Limits, pages and history.


async def test_a_transaction_beyond_etcds_limits_names_the_limit(coordinator: EtcdCoordinator) -> None:
    with pytest.raises(TransactionTooLargeError, match=r"--max-txn-ops \(128"):
        await coordinator.transact([], [Put(f"k{number}", b"") for number in range(129)])
    with pytest.raises(TransactionTooLargeError, match="--max-request-bytes"):
        await coordinator.transact([], [Put(f"k{number}", b"x" * 200_000) for number in range(9)])
    with pytest.raises(TransactionTooLargeError):
        await coordinator.transact([Compare(f"k{number}", 0) for number in range(129)], [Put("k", b"")])
    assert (await coordinator.list("")).entries == ()
    await coordinator.transact([], [Put(f"k{number}", b"x" * 8_000) for number in range(128)])
    assert len((await coordinator.list("")).entries) == 128


async def test_a_list_of_many_pages_is_from_one_moment(coordinator: EtcdCoordinator) -> None:
    for block in range(10):
        await coordinator.transact([], [Put(f"k{block}/{number:03}", b"0") for number in range(100)])

    async def rewrite() -> None:
        for turn in range(40):
            await coordinator.transact([], [Put(f"k{block}/{turn:03}", b"%d" % turn) for block in range(10)])

    writing = asyncio.ensure_future(rewrite())
    while not writing.done():
        snapshot = await coordinator.list("k")
        assert len(snapshot.entries) == 1_000
        assert max(entry.modified for entry in snapshot.entries) <= snapshot.revision
        # Each transaction wrote to all blocks: a page from another moment would show one that did not.
        newest = [max(e.modified for e in snapshot.entries if e.key.startswith(f"k{block}/0")) for block in range(10)]
        assert len(set(newest)) == 1 or len({entry.value for entry in snapshot.entries}) == 1
    await writing


async def test_a_compacted_revision_is_reported_and_listing_continues(coordinator: EtcdCoordinator) -> None:
    revisions = [(await coordinator.transact([], [Put("k", b"%d" % number)])).revision for number in range(5)]
    await coordinator.compact(revisions[3])
    await coordinator.compact(revisions[2])
    watch: Any = coordinator.watch("k", revisions[0])
    with pytest.raises(CompactedError, match="list again"):
        await anext(watch)
    watch = coordinator.watch("k", revisions[3])
    assert [change.value for change in await anext(watch)] == [b"4"]
    await watch.aclose()


async def test_clients_agree_on_one_that_compacts(tmp_path: Path) -> None:
    settings = EtcdSettings(etcd().endpoints, prefix=f"etcd{tmp_path}/", history=0.3)
    async with opened(settings) as one, opened(settings) as two:
        first = (await one.transact([], [Put("k", b"0")])).revision
        await two.get("k")
        compacted = set()
        began = asyncio.get_running_loop().time()
        for _ in range(200):
            await asyncio.sleep(0.02)
            entry = await one.get("compacted")
            compacted.add(0 if entry is None else entry.modified)
            watch: Any = one.watch("k", first - 1)
            try:
                await asyncio.wait_for(anext(watch), patience(2))
            except CompactedError:
                break
            finally:
                await watch.aclose()
        else:
            raise AssertionError("nothing has compacted")
        # Two clients share one round in each period.
        assert len(compacted) <= (asyncio.get_running_loop().time() - began) / settings.history + 2


async def test_a_change_with_large_values_is_one_tuple(coordinator: EtcdCoordinator) -> None:
    revision = (await coordinator.transact([], [Put("begin", b"")])).revision
    for turn in range(4):
        await coordinator.transact([], [Put(f"k{number}", b"%d" % turn * 100_000) for number in range(12)])
    watch: Any = coordinator.watch("k", revision)
    for turn in range(4):
        group = await asyncio.wait_for(anext(watch), patience(10))
        assert [change.key for change in group] == [f"k{number}" for number in range(12)]
        assert {(change.value or b"")[:1] for change in group} == {b"%d" % turn}
    await watch.aclose()


# Connections that break.


async def test_a_transaction_whose_answer_is_lost_is_not_made_again(tmp_path: Path) -> None:
    async with CuttingProxy(etcd().endpoints[0]) as proxy:
        settings = EtcdSettings((proxy.address,), prefix=f"etcd{tmp_path}/", timeout=5.0)
        async with opened(settings) as coordinator:
            await coordinator.transact([], [Put("other", b"")])
            proxy.is_deaf = True
            asking = asyncio.ensure_future(coordinator.transact([], [Put("k", b"")]))
            await asyncio.sleep(0.3)
            proxy.close_connections()
            proxy.is_deaf = False
            with pytest.raises(CoordinatorUnavailableError, match="may or may not have been done"):
                await asking
            entry = await coordinator.get("k")
            assert entry is not None
            assert entry.created == entry.modified


async def test_a_watch_that_is_cut_off_repeatedly_reports_changes_once(tmp_path: Path) -> None:
    plain = EtcdSettings(etcd().endpoints, prefix=f"etcd{tmp_path}/")
    async with CuttingProxy(etcd().endpoints[0]) as proxy, opened(plain) as writer:
        start = (await writer.transact([], [Put("k", b"begin")])).revision
        cut_off = EtcdCoordinator(EtcdSettings((proxy.address,), prefix=plain.prefix))

        async def follow() -> list[list[tuple[str, bytes | None]]]:
            reported: list[list[tuple[str, bytes | None]]] = []
            async for changes in cut_off.watch("k", start):
                reported.append([(change.key, change.value) for change in changes])
                if len(reported) == 60:
                    break
            return reported

        following = asyncio.ensure_future(follow())
        for value in range(60):
            proxy.is_deaf = value % 10 == 7
            await writer.transact([], [Put("k", b"%d" % value), Put(f"k/{value}", b"")])
            await asyncio.sleep(0.02)
            if value % 10 == 9:
                proxy.close_connections()
        reported = await asyncio.wait_for(following, patience(20))
        assert reported == [[("k", b"%d" % value), (f"k/{value}", b"")] for value in range(60)]
        await cut_off.close()


# Leases.


@pytest.mark.paper(section="6.2")
async def test_a_lease_over_by_its_holders_clock_is_not_revived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine was suspended. etcd may end the lease late, but the holder must know at once."""
    now = 1_000.0
    settings = EtcdSettings(etcd().endpoints, prefix=f"etcd{tmp_path}/")
    async with opened(settings, clock=lambda: now) as coordinator:
        lease = await coordinator.grant_lease(60)
        await coordinator.transact([], [Put("k", b"", lease)])
        now += 50
        await coordinator.keep_alive(lease)
        monkeypatch.setattr(RenewalCalls, "renew", unanswered)
        now += 59
        await coordinator.transact([], [Put("l", b"", lease)])
        now += 1
        with pytest.raises(LeaseExpiredError, match="was not renewed"):
            await coordinator.transact([], [Put("m", b"", lease)])
        assert await coordinator.get("k") is not None
        with pytest.raises(LeaseExpiredError, match="was not renewed"):
            await coordinator.keep_alive(lease)
        monkeypatch.undo()
        await coordinator.revoke_lease(lease)
        assert (await coordinator.list("")).entries == ()
        with pytest.raises(LeaseExpiredError):
            await coordinator.keep_alive(lease)


def unanswered(calls: RenewalCalls, leases: Sequence[int], patience: float) -> Iterator[tuple[int, int]]:
    raise CoordinatorUnavailableError("no answer")


@pytest.mark.paper(section="7.1")
async def test_a_lease_ends_for_its_holder_while_etcd_does_not_answer(tmp_path: Path) -> None:
    """Regression: the holder acted until the deadline of the call, and then again as long, to revoke the lease."""
    (real,) = etcd().endpoints
    async with CuttingProxy(real) as proxy:
        settings = EtcdSettings((proxy.address,), prefix=f"etcd{tmp_path}/", timeout=patience(30))
        async with opened(settings) as coordinator:
            lease = await coordinator.grant_lease(2)
            proxy.is_deaf = True
            async with asyncio.timeout(patience(15)):
                with pytest.raises(LeaseExpiredError):
                    await coordinator.keep_alive(lease)


@pytest.mark.paper(section="7.1")
async def test_a_holder_that_wakes_too_late_stops_before_any_call(tmp_path: Path) -> None:
    """Regression: the lease ended while its holder slept.

    The holder acted until etcd answered or the deadline passed.
    """
    now = 1_000.0
    (real,) = etcd().endpoints
    async with CuttingProxy(real) as proxy:
        settings = EtcdSettings((proxy.address,), prefix=f"etcd{tmp_path}/", timeout=patience(30))
        async with opened(settings, clock=lambda: now) as coordinator:
            lease = await coordinator.grant_lease(5)
            proxy.is_deaf = True
            now += 6
            async with asyncio.timeout(patience(5)):
                with pytest.raises(LeaseExpiredError, match="was not renewed"):
                    await coordinator.keep_alive(lease)


@pytest.mark.paper(section="7.1")
async def test_a_renewal_that_is_read_too_late_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """etcd renewed the lease. But the holder was paused before it read the answer, for longer than the lease."""
    now = 1_000.0
    settings = EtcdSettings(etcd().endpoints, prefix=f"etcd{tmp_path}/")
    async with opened(settings, clock=lambda: now) as coordinator:
        lease = await coordinator.grant_lease(60)
        renew = RenewalCalls.renew

        def paused(calls: RenewalCalls, leases: Sequence[int], patience: float) -> Iterator[tuple[int, int]]:
            nonlocal now
            for answer in renew(calls, leases, patience):
                now += 61
                yield answer

        monkeypatch.setattr(RenewalCalls, "renew", paused)
        with pytest.raises(LeaseExpiredError, match="was not renewed"):
            await coordinator.keep_alive(lease)
        await coordinator.revoke_lease(lease)


# Errors name the setting and the remedy.


@pytest.mark.paper(section="7.1")
async def test_a_short_lease_is_renewed_in_time_with_a_paused_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: half of the call's deadline was spent on the paused member. The lease ended before that."""
    (real,) = etcd().endpoints
    monkeypatch.setattr("millwheel.coordination.etcd.link.random.sample", lambda members, count: list(members))
    async with CuttingProxy(real) as proxy:
        settings = EtcdSettings((proxy.address, real), prefix=f"etcd{tmp_path}/", timeout=patience(10))
        async with opened(settings) as coordinator:
            lease = await coordinator.grant_lease(patience(3))
            proxy.is_deaf = True
            # LeaseExpiredError if the lease ends meanwhile.
            await coordinator.keep_alive(lease)
            await coordinator.revoke_lease(lease)


async def test_an_address_without_a_server_is_named_with_its_setting() -> None:
    port = free_ports(1)[0]
    async with opened(EtcdSettings((f"127.0.0.1:{port}",), timeout=1.0)) as coordinator:
        with pytest.raises(CoordinatorUnavailableError, match=rf"127.0.0.1:{port}.*coordinator\.endpoints"):
            await coordinator.get("k")
        with pytest.raises(CoordinatorUnavailableError, match=r"coordinator\.endpoints"):
            await coordinator.transact([], [Put("k", b"")])
        with pytest.raises(CoordinatorUnavailableError, match=r"coordinator\.endpoints"):
            await coordinator.keep_alive(7)


async def test_it_connects_when_etcd_comes_up_later(tmp_path: Path) -> None:
    cluster = EtcdCluster(tmp_path / "late")
    async with opened(EtcdSettings(cluster.endpoints, timeout=patience(20))) as coordinator:
        waiting = asyncio.ensure_future(coordinator.get("k"))
        await asyncio.sleep(0.5)
        async with cluster:
            assert await waiting is None


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"endpoints": ()}, r"coordinator\.endpoints"),
        ({"tls_cert": Path("c")}, r"coordinator\.tls_key"),
        ({"tls_cert": Path("c"), "tls_key": Path("k")}, r"coordinator\.tls_ca"),
        ({"username": "u"}, r"coordinator\.password"),
        ({"timeout": 0.0}, r"coordinator\.timeout_seconds"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        EtcdSettings(**wrong)


async def test_a_tls_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"coordinator\.tls_ca: .*nowhere"):
        EtcdCoordinator(EtcdSettings(tls_ca=Path("/nowhere/ca.pem")))


async def test_tls_with_certificates_on_both_sides(tmp_path: Path) -> None:
    async with EtcdCluster(tmp_path / "tls", tls=TLS) as cluster:
        good = EtcdSettings(cluster.endpoints, tls_ca=TLS.ca, tls_cert=TLS.cert, tls_key=TLS.key)
        async with opened(good) as coordinator:
            outcome = await coordinator.transact([], [Put("k", b"v")])
            watch: Any = coordinator.watch("", outcome.revision - 1)
            assert (await anext(watch))[0].key == "k"
            await watch.aclose()
        for wrong in (
            EtcdSettings(cluster.endpoints, timeout=1.0),
            EtcdSettings(cluster.endpoints, timeout=1.0, tls_ca=CERTIFICATES / "two-ca.pem"),
            EtcdSettings(cluster.endpoints, timeout=1.0, tls_ca=TLS.ca),
        ):
            async with opened(wrong) as coordinator:
                with pytest.raises(CoordinatorUnavailableError, match=cluster.endpoints[0]):
                    await coordinator.get("k")


def ask(endpoint: str, path: str, **body: Any) -> None:
    """etcd's own HTTP gateway, as an operator's tool would use it."""
    request = urllib.request.Request(f"http://{endpoint}/v3/{path}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=patience(10)):
        pass


async def put_raw(key: bytes, value: bytes) -> None:
    """Put any bytes, as a foreign program might."""
    row = {"key": b64encode(key).decode(), "value": b64encode(value).decode()}
    await asyncio.to_thread(ask, etcd().endpoints[0], "kv/put", **row)


async def test_users_and_what_their_roles_allow(tmp_path: Path) -> None:
    async with EtcdCluster(tmp_path / "users", options=("--auth-token-ttl", "1")) as cluster:
        (endpoint,) = cluster.endpoints
        early = EtcdSettings(cluster.endpoints, username="mill", password="right")
        async with opened(early) as coordinator:
            # etcd has no authentication yet.
            await coordinator.transact([], [Put("k", b"v")])
            for user, password in (("root", "r"), ("mill", "right")):
                ask(endpoint, "auth/user/add", name=user, password=password)
            for role in ("root", "mill"):
                ask(endpoint, "auth/role/add", name=role)
                ask(endpoint, "auth/user/grant", user=role, role=role)
            key, end = ("bWlsbHdoZWVsLw==", "bWlsbHdoZWVsMA==")  # millwheel/ to millwheel0
            ask(endpoint, "auth/role/grant", name="mill", perm={"permType": "READWRITE", "key": key, "range_end": end})
            ask(endpoint, "auth/enable")
            for _ in range(4):
                assert await coordinator.get("k") is not None
                lease = await coordinator.grant_lease(60)
                await coordinator.transact([], [Put("bound", b"", lease)])
                await coordinator.keep_alive(lease)
                await asyncio.sleep(0.8)  # tokens end by themselves
        plain = EtcdSettings(cluster.endpoints)
        wrong = EtcdSettings(cluster.endpoints, username="mill", password="wrong")
        elsewhere = EtcdSettings(cluster.endpoints, username="mill", password="right", prefix="theirs/")
        for settings, notified in (
            (plain, "set coordinator.username"),
            (wrong, "correct coordinator.username"),
            (elsewhere, "give user mill"),
        ):
            async with opened(settings) as coordinator:
                with pytest.raises(CoordinatorUnavailableError, match=notified) as caught:
                    await coordinator.transact([], [Put("k", b"")])
                assert "wrong" not in str(caught.value)
                watch: Any = coordinator.watch("", 0)
                with pytest.raises(CoordinatorUnavailableError, match=notified):
                    await asyncio.wait_for(anext(watch), patience(10))


def test_a_password_is_not_printed() -> None:
    assert "secret" not in repr(EtcdSettings(username="u", password="secret"))


# Damage.


async def test_a_damaged_or_foreign_value_is_named_and_not_served(coordinator: EtcdCoordinator, tmp_path: Path) -> None:
    """Regression: values had no checksum, so any bytes counted as a record."""
    await coordinator.transact([], [Put("topologies/t", b"whole"), Put("topologies/u", b"other")])
    first = await coordinator.list("")
    whole_value = wrap(b"whole")
    for bad in (whole_value[:-1], whole_value[:3], b"", b"whole", whole_value[:-1] + b"E"):
        await put_raw(f"etcd{tmp_path}/topologies/t".encode(), bad)
        with pytest.raises(DamagedValueError, match="value topologies/t is damaged"):
            await coordinator.get("topologies/t")
        damaged, whole = (await coordinator.list("topologies/")).entries
        assert damaged.value == b""
        assert damaged.damage
        assert (whole.value, whole.damage) == (b"other", "")
    async with asyncio.timeout(patience(10)):
        seen: list[KeyChange] = []
        async for changes in coordinator.watch("", first.revision):
            seen += changes
            if len(seen) == 5:
                break
    assert all(change.damage and change.value == b"" for change in seen)


async def test_a_key_that_is_no_text_leaves_the_others_readable(coordinator: EtcdCoordinator, tmp_path: Path) -> None:
    await coordinator.transact([], [Put("k", b"v")])
    await put_raw(f"etcd{tmp_path}/k".encode() + b"\xff\xfe", b"")
    assert [(entry.key, entry.value) for entry in (await coordinator.list("")).entries] == [
        ("k", b"v"),
        ("k\\xff\\xfe", b""),
    ]
