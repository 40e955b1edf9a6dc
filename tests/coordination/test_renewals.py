"""Leases on etcd are renewed beside the event loop: a busy loop keeps its leases, and one that stands loses them."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from millwheel.coordination.contract import LeaseExpiredError, Put
from millwheel.coordination.etcd import EtcdCoordinator, EtcdSettings
from millwheel.coordination.etcd.leases import HeldLeases
from millwheel.coordination.etcd.renewal_schedule import RenewalSchedule
from tests.components import etcd
from tests.patience import patience, until
from tests.relay import CuttingProxy, Line

TTL: Final = 6.0
LEASE: Final = 7
CERTIFICATES: Final = Path(__file__).parents[1] / "rpc" / "certificates"


class Holder:
    """A holder that asks for renewals, at chosen times. Etcd answers at once."""

    def __init__(self) -> None:
        self.schedule = RenewalSchedule()
        self.schedule.granted(LEASE, TTL, 0.0)
        self.renewed: list[float] = []

    def until(self, end: float) -> None:
        """Let the thread do all that is due by a time."""
        now = self.renewed[-1] if self.renewed else 0.0
        while (turn := self.schedule.next(now)) is not None and now + turn[1] <= end:
            now += turn[1]
            self.schedule.renewed(LEASE, TTL, now)
            self.renewed.append(now)
        self.schedule.next(end)

    def asks(self, now: float) -> None:
        """The holder asks."""
        self.schedule.ask(LEASE, TTL, now)
        self.until(now)


def test_a_holder_that_asks_in_time_is_the_only_one_to_renew() -> None:
    holder = Holder()
    for time_ in (2.0, 4.0, 6.0, 8.0):
        holder.until(time_)
        holder.asks(time_)
    assert holder.renewed == [2.0, 4.0, 6.0, 8.0]


def test_a_lease_is_renewed_while_its_holder_asks_late() -> None:
    holder = Holder()
    for time_ in (5.5, 11.0, 16.5):
        holder.until(time_)
        holder.asks(time_)
    gaps = [later - earlier for earlier, later in zip([0.0, *holder.renewed], holder.renewed, strict=False)]
    assert max(gaps) <= TTL / 2


@pytest.mark.guarantee("G8", section="7.1")
def test_a_holder_that_stands_is_renewed_for_one_lease() -> None:
    holder = Holder()
    holder.asks(2.0)
    holder.until(1_000.0)
    assert holder.renewed[-1] <= 2.0 + TTL
    assert LEASE not in holder.schedule


def test_a_holder_that_reads_an_answer_runs() -> None:
    holder = Holder()
    holder.asks(2.0)
    holder.until(7.0)
    holder.schedule.ran(LEASE, TTL, 7.0)
    holder.until(1_000.0)
    assert holder.renewed == [2.0, 5.0, 8.0, 11.0]


def test_what_was_given_up_is_not_renewed_again() -> None:
    holder = Holder()
    holder.asks(2.0)
    holder.schedule.drop(LEASE)
    holder.schedule.ran(LEASE, TTL, 3.0)
    assert holder.schedule.next(3.0) is None


def test_a_failed_attempt_is_repeated_soon_and_for_who_waits() -> None:
    schedule = RenewalSchedule()
    schedule.ask(LEASE, TTL, 0.0)
    schedule.failed(LEASE, 1.0)
    assert schedule.attempts(LEASE) == 1
    turn = schedule.next(1.0)
    assert turn is not None
    assert 0 < turn[1] < 1
    schedule.failed(LEASE, TTL)
    assert schedule.next(TTL + 1, frozenset({LEASE})) == (LEASE, 0.0), "its holder waits for an answer"
    assert schedule.next(TTL + 1) is None


@pytest.fixture
async def coordinator(tmp_path: Path) -> AsyncIterator[EtcdCoordinator]:
    made = EtcdCoordinator(EtcdSettings(etcd().endpoints, prefix=f"renewals{tmp_path}/"))
    yield made
    await made.close()


@contextmanager
def busy_loop(turn: float) -> Iterator[None]:
    """Each turn of the event loop takes so many seconds, as with hooks that are never done."""
    loop = asyncio.get_running_loop()
    over = threading.Event()

    def work() -> None:
        time.sleep(turn)
        if not over.is_set():
            loop.call_soon(work)

    loop.call_soon(work)
    try:
        yield
    finally:
        over.set()


@pytest.mark.guarantee("G8", section="7.1")
async def test_a_busy_loop_keeps_its_lease(coordinator: EtcdCoordinator) -> None:
    """Regression: a renewal took some twenty turns of the loop, and each attempt ended before that."""
    ttl = patience(2)
    lease = await coordinator.grant_lease(ttl)
    await coordinator.transact([], [Put("k", b"", lease)])
    with busy_loop(ttl / 25):
        for _ in range(4):
            await asyncio.sleep(ttl / 3)
            await coordinator.keep_alive(lease)
    assert await coordinator.get("k") is not None
    await coordinator.revoke_lease(lease)


class SlowRelay(CuttingProxy):
    """A relay over a long way: connections take a time to open, and each piece of an answer takes a time."""

    opening = 0.0
    answering = 0.0
    opened = 0

    async def opens(self, line: Line) -> None:
        self.opened += 1
        await asyncio.sleep(self.opening)

    async def passes(self, line: Line, answer: bool) -> bool:
        if answer:
            await asyncio.sleep(self.answering)
        return await super().passes(line, answer)


@pytest.mark.paper(section="7.1")
@pytest.mark.parametrize("tls", [False, True])
async def test_leases_live_where_connections_open_slowly(tmp_path: Path, tls: bool) -> None:
    """Regression: gRPC gave each connection 0.1 s, and each attempt made a connection of its own."""
    server = None
    files: dict[str, Any] = {"tls_ca": CERTIFICATES / "one-ca.pem"} if tls else {}
    if tls:
        server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        server.load_cert_chain(CERTIFICATES / "one.pem", CERTIFICATES / "one.key")
        server.set_alpn_protocols(["h2"])
    async with SlowRelay(etcd().endpoints[0], tls=server) as relay:
        settings = EtcdSettings((relay.address,), prefix=f"renewals{tmp_path}/", timeout=patience(30), **files)
        slow = EtcdCoordinator(settings)
        lease = await slow.grant_lease(patience(3))
        relay.opening, relay.opened = 0.4, 0
        for _ in range(3):
            await slow.keep_alive(lease)
        assert 0 < relay.opened < 4
        await slow.revoke_lease(lease)
        await slow.close()


@pytest.mark.paper(section="7.1")
async def test_many_leases_are_renewed_over_slow_answers(tmp_path: Path) -> None:
    """Regression: they were renewed one after the other, and many took longer than a lease lasts."""
    ttl, many = patience(3), 30
    async with SlowRelay(etcd().endpoints[0]) as relay:
        settings = EtcdSettings((relay.address,), prefix=f"renewals{tmp_path}/", timeout=patience(30))
        slow = EtcdCoordinator(settings)
        leases = await asyncio.gather(*(slow.grant_lease(ttl) for _ in range(many)))
        relay.answering = ttl / many
        for _ in range(3):
            await asyncio.gather(*map(slow.keep_alive, leases))
        relay.answering = 0.0
        await asyncio.gather(*map(slow.revoke_lease, leases))
        await slow.close()


@pytest.mark.guarantee("G8", section="7.1")
def test_a_lease_that_etcd_has_ended_is_over_for_good() -> None:
    """Regression: it was forgotten, so its holder believed in it while etcd was away."""
    leases = HeldLeases(lambda: 100.0)
    leases.renewed(LEASE, TTL, 99.0)
    with pytest.raises(LeaseExpiredError):
        leases.answered(LEASE, 0, 100.0)
    with pytest.raises(LeaseExpiredError, match="has ended, and what was bound to it is gone"):
        leases.check(LEASE)
    leases.renewed(LEASE, TTL, 100.0)
    assert leases.is_over(LEASE), "a later answer revives nothing"
    leases.forget(LEASE)
    leases.check(LEASE)


def test_all_due_leases_are_renewed_together() -> None:
    schedule = RenewalSchedule()
    for lease, asked in ((1, 1.0), (2, 0.0), (3, 5.0)):
        schedule.granted(lease, TTL, asked)
    assert schedule.due(4.0) == [2, 1], "the most urgent first"
    assert schedule.shortest() == TTL


async def test_a_holder_that_never_asks_again_loses_its_lease(coordinator: EtcdCoordinator) -> None:
    lease = await coordinator.grant_lease(2)
    await coordinator.transact([], [Put("k", b"", lease)])
    await coordinator.keep_alive(lease)

    async def is_gone() -> bool:
        return await coordinator.get("k") is None

    await until(is_gone, patience(30), every=0.2)
    with pytest.raises(LeaseExpiredError):
        await coordinator.keep_alive(lease)


async def test_a_lease_that_is_given_up_ends_without_etcd(coordinator: EtcdCoordinator) -> None:
    """Its renewals end with the attempt to revoke it, also if that fails."""
    lease = await coordinator.grant_lease(60)
    asked = asyncio.ensure_future(coordinator.keep_alive(lease))
    await asyncio.gather(asked, coordinator.revoke_lease(lease), return_exceptions=True)
    with pytest.raises(LeaseExpiredError):
        await coordinator.keep_alive(lease)


async def test_a_thread_that_cannot_start_is_started_later(
    coordinator: EtcdCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: it counted as started, so no lease was renewed any more."""

    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        # gRPC starts a thread with a process's first channel, and its core corrupts memory if that raises.
        if thread.name != "millwheel-leases":
            start(thread)
            return
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patching:
        patching.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            await coordinator.grant_lease(60)
    lease = await coordinator.grant_lease(60)
    async with asyncio.timeout(patience(5)):
        await coordinator.keep_alive(lease)


async def test_a_closed_coordinator_leaves_no_thread(coordinator: EtcdCoordinator) -> None:
    lease = await coordinator.grant_lease(60)
    await coordinator.keep_alive(lease)
    await coordinator.close()
    assert "millwheel-leases" not in [one.name for one in threading.enumerate()]
