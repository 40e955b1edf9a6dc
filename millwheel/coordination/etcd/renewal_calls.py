"""Renewals of leases as blocking calls to etcd, for a thread that does not wait for the event loop."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import grpc

from millwheel.coordination.contract import CoordinatorUnavailableError
from millwheel.coordination.etcd import failures
from millwheel.coordination.etcd.failures import RetryDecision
from millwheel.coordination.etcd.link import AUTHENTICATE, CHANNEL_OPTIONS, FIRST_ATTEMPT_SECONDS, NEEDS_LEADER
from millwheel.coordination.etcd.settings import EtcdSettings
from millwheel.coordination.etcd.v3 import etcd_pb2 as etcd

__all__ = ["RenewalCalls"]

_KEEP_ALIVE: Final = "/etcdserverpb.Lease/LeaseKeepAlive"
# gRPC gives up a connection that is not made within this time. TLS over a long way, or on a busy machine, takes more
# than the time of the shared options.
_CONNECTING_MS: Final = ("grpc.min_reconnect_backoff_ms", int(FIRST_ATTEMPT_SECONDS * 1_000))
_CHANNEL_OPTIONS: Final = (*(one for one in CHANNEL_OPTIONS if one[0] != _CONNECTING_MS[0]), _CONNECTING_MS)


class RenewalCalls:
    """Blocking calls to the members of etcd, one member at a time. One thread calls :meth:`renew`."""

    def __init__(
        self, settings: EtcdSettings, credentials: grpc.ChannelCredentials | None, members: Sequence[str]
    ) -> None:
        """``members``: the addresses, in the order in which they are tried."""
        self._settings = settings
        self._credentials = credentials
        self._order = list(members)
        self._channels: dict[str, grpc.Channel] = {}
        """By member. A connection that is not made within an attempt goes on, so that the next attempt finds it."""
        self._answering: set[str] = set()
        """The members whose connections have had an answer. If one has none in time, it may be dead without notice."""
        # As in EtcdConnection. None: etcd has no authentication.
        self._token: str | None = ""

    def renew(self, leases: Sequence[int], patience: float) -> Iterator[tuple[int, int]]:
        """Make one attempt for leases, for at most ``patience`` seconds. Yield (lease, ttl) for each answer.

        A ttl is in seconds, and 0 if the lease has ended. etcd answers in the order of ``leases``, over one stream. So
        many leases take hardly more time than one.

        Raises:
            CoordinatorUnavailableError: The attempt failed for the rest. The next one is made at the next member.
            CoordinatorError: etcd refuses the first one of the rest, and would refuse it again.
        """
        end = time.monotonic() + patience
        address = self._order[0]
        left = len(leases)
        dead = False
        try:
            channel = self._connect(address)
            metadata = self._metadata(channel, patience)
            method: Any = channel.stream_stream(
                _KEEP_ALIVE, etcd.LeaseKeepAliveRequest.SerializeToString, etcd.LeaseKeepAliveResponse.FromString
            )
            requests = [etcd.LeaseKeepAliveRequest(id=lease) for lease in leases]
            call = method(iter(requests), timeout=max(0.0, end - time.monotonic()), metadata=metadata)
            try:
                for answer in call:
                    self._answering.add(address)
                    yield answer.id, answer.ttl
                    left -= 1
                    if not left:
                        return
            finally:
                call.cancel()
            why = f"{address}: no answer"
        except grpc.RpcError as error:
            code, details = _code_of(error), _details_of(error)
            why = f"{address}: {details or code.name}"
            verdict = failures.judge(self._settings, code, details)
            if verdict is RetryDecision.FINAL:
                raise failures.refusal(self._settings, details or code.name) from error
            if verdict is RetryDecision.TOKEN:
                self._token = ""
            # An attempt that was cut short says nothing about the connection.
            waited = code is grpc.StatusCode.DEADLINE_EXCEEDED and patience >= FIRST_ATTEMPT_SECONDS
            dead = waited and address in self._answering
        except ValueError as error:  # a call on a channel that `close` has closed meanwhile
            why, dead = str(error), True
        self._leave(address, dead)
        raise CoordinatorUnavailableError(why)

    def close(self) -> None:
        """End the call that is under way. Any thread may call this."""
        for channel in list(self._channels.values()):
            channel.close()

    def _connect(self, address: str) -> grpc.Channel:
        if address not in self._channels:
            if self._credentials is None:
                channel = grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
            else:
                channel = grpc.secure_channel(address, self._credentials, options=_CHANNEL_OPTIONS)
            self._channels[address] = channel
        return self._channels[address]

    def _leave(self, address: str, dead: bool) -> None:
        """Use the next member. ``dead``: this one by a new connection, when its turn comes again."""
        self._order = [*self._order[1:], self._order[0]]
        if dead and (channel := self._channels.pop(address, None)) is not None:
            self._answering.discard(address)
            channel.close()

    def _metadata(self, channel: grpc.Channel, patience: float) -> Any:
        if self._settings.username and self._token == "":
            self._token = self._authenticate(channel, patience)
        return (NEEDS_LEADER, ("token", self._token)) if self._token else (NEEDS_LEADER,)

    def _authenticate(self, channel: grpc.Channel, patience: float) -> str | None:
        request = etcd.AuthenticateRequest(name=self._settings.username, password=self._settings.password)
        call: Any = channel.unary_unary(
            AUTHENTICATE, etcd.AuthenticateRequest.SerializeToString, etcd.AuthenticateResponse.FromString
        )
        try:
            answer: etcd.AuthenticateResponse = call(request, timeout=patience, metadata=(NEEDS_LEADER,))
        except grpc.RpcError as error:
            if "authentication is not enabled" in _details_of(error):
                return None
            raise
        return answer.token


def _code_of(error: Any) -> grpc.StatusCode:
    """The code of a failed call. Such errors are calls, too, which the stated type does not say."""
    code = grpc.StatusCode.UNKNOWN
    with suppress(AttributeError):
        code = error.code()
    return code


def _details_of(error: Any) -> str:
    """The text of a failed call."""
    details = ""
    with suppress(AttributeError):
        details = error.details() or ""
    return details
