"""A thread that renews leases, so that a busy event loop does not lose them.

A renewal within the event loop takes some twenty turns of it. A loop whose turns last a tenth of a second, as hooks
may make them, does not finish one renewal before its time limit. This thread does, with a connection of its own.
:mod:`millwheel.coordination.etcd.renewal_schedule` has the bound that keeps a process that hangs from renewing for
ever.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field

from millwheel.coordination.contract import CoordinatorError, CoordinatorUnavailableError, LeaseExpiredError
from millwheel.coordination.etcd import failures
from millwheel.coordination.etcd.leases import HeldLeases
from millwheel.coordination.etcd.link import FIRST_ATTEMPT_SECONDS
from millwheel.coordination.etcd.renewal_calls import RenewalCalls
from millwheel.coordination.etcd.renewal_schedule import RenewalSchedule
from millwheel.coordination.etcd.settings import EtcdSettings

__all__ = ["LeaseRenewals"]

log = logging.getLogger("millwheel.coordination")


@dataclass(slots=True)
class _Asked:
    """Requests for a lease. ``until``: they fail if no attempt has succeeded by then."""

    until: float
    answers: list[Future[None]] = field(default_factory=list)


class LeaseRenewals:
    """Renews the leases of one client. The thread starts with the first lease."""

    def __init__(self, settings: EtcdSettings, leases: HeldLeases, calls: RenewalCalls) -> None:
        """``leases``: gets each renewal, from the thread. ``calls``: the connection, which the thread uses alone."""
        self._settings = settings
        self._leases = leases
        self._calls = calls
        self._changed = threading.Condition()
        """Guards what follows."""
        self._schedule = RenewalSchedule()
        self._asked: dict[int, _Asked] = {}
        self._closed = False
        self._thread: threading.Thread | None = None

    def granted(self, lease: int, asked: float) -> None:
        """Renew a lease for one time to live from ``asked`` on. Its holder asked for it then, by the leases' clock."""
        with self._changed:
            if not self._closed:
                self._schedule.granted(lease, self._leases.ttl(lease), asked)
                self._wake()

    def renew(self, lease: int) -> Future[None]:
        """Renew a lease now, and for one time to live from now on. Only the holder's event loop may call this.

        The future fails with LeaseExpiredError if the lease has ended, else with CoordinatorError if etcd does not
        answer in time.
        """
        answer: Future[None] = Future()
        with self._changed:
            if self._closed:
                answer.set_exception(failures.closed())
                return answer
            now = self._leases.now()
            until = now + min(self._settings.timeout, self._leases.remaining(lease))
            self._asked.setdefault(lease, _Asked(until)).answers.append(answer)
            self._schedule.ask(lease, self._leases.ttl(lease), now)
            self._wake()
        return answer

    def ran(self, lease: int) -> None:
        """Renew a lease for one time to live from now on. Its holder has read an answer of :meth:`renew`."""
        with self._changed:
            self._schedule.ran(lease, self._leases.ttl(lease), self._leases.now())
            self._changed.notify()

    def drop(self, lease: int) -> None:
        """Renew the lease no more. When this returns, the thread changes nothing of the lease any more."""
        with self._changed:
            self._end(lease, LeaseExpiredError(f"lease {lease:x} was given up"))

    def close(self) -> None:
        """Renew nothing more. The thread ends soon. :meth:`join` waits for that."""
        with self._changed:
            self._closed = True
            for lease in list(self._asked):
                self._end(lease, failures.closed())
            self._changed.notify()
        self._calls.close()

    def join(self) -> None:
        """Wait until the thread has ended, after :meth:`close`. It blocks, so call it in another thread."""
        if self._thread is not None:
            self._thread.join()

    # The thread.

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="millwheel-leases", daemon=True)
            self._thread.start()
        self._changed.notify()

    def _run(self) -> None:
        while (lease := self._next()) is not None:
            try:
                self._attempt(lease)
            except Exception:
                log.exception("a lease could not be renewed, trying again")
                with self._changed:
                    if lease in self._schedule:
                        self._schedule.failed(lease, self._leases.now())
        self._calls.close()

    def _next(self) -> int | None:
        """Wait until a lease is due. None: closed."""
        with self._changed:
            while not self._closed:
                turn = self._schedule.next(self._leases.now(), frozenset(self._asked))
                if turn is not None and turn[1] <= 0:
                    return turn[0]
                self._changed.wait(None if turn is None else turn[1])
        return None

    def _attempt(self, lease: int) -> None:
        """Make one attempt, and answer the requests if it decides about them."""
        with self._changed:
            if lease not in self._schedule:
                return
            now, asked = self._leases.now(), self._asked.get(lease)
            try:
                self._leases.check(lease)
            except LeaseExpiredError as error:
                self._end(lease, error)
                return
            patience = FIRST_ATTEMPT_SECONDS * 2 ** (self._schedule.attempts(lease) // 2)
            patience = min(patience, self._leases.remaining(lease), (asked.until if asked else now + patience) - now)
        try:
            ttl = self._calls.renew(lease, max(0.0, patience))
        except CoordinatorUnavailableError as error:
            self._failed(lease, error)
        except CoordinatorError as error:
            with self._changed:
                self._end(lease, error)
        else:
            self._answered(lease, ttl, now)

    def _answered(self, lease: int, ttl: int, asked: float) -> None:
        """etcd has answered an attempt that began at ``asked``. ``ttl`` 0: the lease has ended."""
        with self._changed:
            if lease not in self._schedule:
                return  # it was given up meanwhile
            try:
                self._leases.answered(lease, ttl, asked)
            except LeaseExpiredError as error:
                self._end(lease, error)
                return
            self._schedule.renewed(lease, ttl, asked)
            self._answer(lease, None)

    def _failed(self, lease: int, error: CoordinatorError) -> None:
        with self._changed:
            if lease not in self._schedule:
                return
            now, asked = self._leases.now(), self._asked.get(lease)
            self._schedule.failed(lease, now)
            if isinstance(error, failures.RefusedError):
                self._answer(lease, error)
            elif asked is not None and now >= asked.until:
                self._answer(lease, failures.unavailable(self._settings, str(error)))

    def _end(self, lease: int, error: CoordinatorError) -> None:
        self._schedule.drop(lease)
        self._answer(lease, error)

    def _answer(self, lease: int, error: CoordinatorError | None) -> None:
        asked = self._asked.pop(lease, None)
        for answer in asked.answers if asked is not None else ():
            with suppress(InvalidStateError):  # the holder waits no more
                if error is None:
                    answer.set_result(None)
                else:
                    answer.set_exception(error)
