"""A thread that renews leases, so that a busy event loop does not lose them.

A renewal within the event loop takes some twenty turns of it. A loop whose turns last a tenth of a second, as hooks
may make them, does not finish one renewal before its time limit. This thread does, with a connection of its own.
:mod:`millwheel.coordination.etcd.renewal_schedule` has the bound that keeps a process that hangs from renewing for
ever.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from millwheel.coordination.contract import CoordinatorError, CoordinatorUnavailableError, LeaseExpiredError
from millwheel.coordination.etcd import failures
from millwheel.coordination.etcd.leases import HeldLeases
from millwheel.coordination.etcd.link import FIRST_ATTEMPT_SECONDS
from millwheel.coordination.etcd.renewal_calls import RenewalCalls
from millwheel.coordination.etcd.renewal_schedule import RenewalSchedule
from millwheel.coordination.etcd.settings import EtcdSettings

__all__ = ["LeaseRenewals"]

log = logging.getLogger("millwheel.coordination")

_SHARE: Final = 0.25
"""Of the shortest lease: what a round may take. A lease becomes due when half of it is left."""
_MAX_DOUBLINGS: Final = 10
"""Of an attempt's time. More than any lease lasts."""


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
            thread = threading.Thread(target=self._run, name="millwheel-leases", daemon=True)
            thread.start()  # it may fail, and then the next lease tries again
            self._thread = thread
        self._changed.notify()

    def _run(self) -> None:
        while leases := self._next():
            try:
                self._round(leases)
            except Exception:
                log.exception("leases could not be renewed, trying again")
                with self._changed:
                    now = self._leases.now()
                    for lease in leases:
                        if lease in self._schedule:
                            self._schedule.failed(lease, now)
        self._calls.close()

    def _next(self) -> list[int]:
        """Wait until leases are due. Return all that are due then. Empty: closed."""
        with self._changed:
            while not self._closed:
                asked = frozenset(self._asked)
                turn = self._schedule.next(self._leases.now(), asked)
                if turn is not None and turn[1] <= 0:
                    return self._schedule.due(self._leases.now(), asked)
                self._changed.wait(None if turn is None else turn[1])
        return []

    def _round(self, due: list[int]) -> None:
        """Make one attempt for all these leases, and answer the requests that it decides about.

        One after the other, many leases would need more time than they have, and each attempt that hangs would delay
        those behind it.
        """
        left, patience, now = self._begin(due)
        if not left:
            return
        try:
            for lease, ttl in self._calls.renew(tuple(left), patience):
                left.pop(lease, None)
                self._answered(lease, ttl, now)
        except CoordinatorUnavailableError as error:
            self._failed(left, error)
        except CoordinatorError as error:
            first, *others = left
            with self._changed:
                self._end(first, error)
            self._failed(others, CoordinatorUnavailableError(str(error)))

    def _begin(self, due: list[int]) -> tuple[dict[int, None], float, float]:
        """Return the leases of a round, the seconds that it may take, and the time of its begin.

        It ends with the first of these leases, and with the first time until which a holder waits. It takes at most a
        quarter of the shortest lease: a lease that becomes due meanwhile waits for its end.
        """
        with self._changed:
            leases: dict[int, None] = {}
            now = self._leases.now()
            patience = max(FIRST_ATTEMPT_SECONDS, self._schedule.shortest() * _SHARE)
            for lease in due:
                if lease not in self._schedule:
                    continue
                try:
                    self._leases.check(lease)
                except LeaseExpiredError as error:
                    self._end(lease, error)
                    continue
                leases[lease] = None
                share = FIRST_ATTEMPT_SECONDS * 2 ** min(self._schedule.attempts(lease) // 2, _MAX_DOUBLINGS)
                until = asked.until - now if (asked := self._asked.get(lease)) else share
                patience = min(patience, share, self._leases.remaining(lease), until)
            return leases, max(0.0, patience), now

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

    def _failed(self, leases: Iterable[int], error: CoordinatorError) -> None:
        with self._changed:
            now = self._leases.now()
            for lease in leases:
                if lease not in self._schedule:
                    continue
                asked = self._asked.get(lease)
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
