"""Renewals of leases as blocking calls to etcd, for a thread that does not wait for the event loop."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import grpc

from millwheel.coordination.contract import CoordinatorUnavailableError
from millwheel.coordination.etcd import failures
from millwheel.coordination.etcd.failures import RetryDecision
from millwheel.coordination.etcd.link import AUTHENTICATE, CHANNEL_OPTIONS, NEEDS_LEADER
from millwheel.coordination.etcd.settings import EtcdSettings
from millwheel.coordination.etcd.v3 import etcd_pb2 as etcd

__all__ = ["RenewalCalls"]

_KEEP_ALIVE: Final = "/etcdserverpb.Lease/LeaseKeepAlive"


class RenewalCalls:
    """Blocking calls to the members of etcd, one member at a time. One thread calls :meth:`renew`."""

    def __init__(
        self, settings: EtcdSettings, credentials: grpc.ChannelCredentials | None, members: Sequence[str]
    ) -> None:
        """``members``: the addresses, in the order in which they are tried."""
        self._settings = settings
        self._credentials = credentials
        self._order = list(members)
        self._channel: grpc.Channel | None = None
        """The channel to the first member. A channel on which an attempt failed is not used again."""
        # As in EtcdConnection. None: etcd has no authentication.
        self._token: str | None = ""

    def renew(self, lease: int, patience: float) -> int:
        """Make one attempt, for at most ``patience`` seconds. Return the lease's new ttl in seconds, 0 if it has ended.

        Raises:
            CoordinatorUnavailableError: The attempt failed. The next one is made at the next member.
            CoordinatorError: etcd refuses, and would refuse again.
        """
        end = time.monotonic() + patience
        address = self._order[0]
        try:
            channel = self._connect(address)
            metadata = self._metadata(channel, patience)
            # etcd renews over streams only. This one has one request, and one answer.
            method: Any = channel.unary_stream(
                _KEEP_ALIVE, etcd.LeaseKeepAliveRequest.SerializeToString, etcd.LeaseKeepAliveResponse.FromString
            )
            request = etcd.LeaseKeepAliveRequest(id=lease)
            call = method(request, timeout=max(0.0, end - time.monotonic()), metadata=metadata)
            answer: etcd.LeaseKeepAliveResponse | None = next(call, None)
            call.cancel()
            if answer is not None:
                return answer.ttl
            why = f"{address}: no answer"
        except grpc.RpcError as error:
            code, details = _code_of(error), _details_of(error)
            why = f"{address}: {details or code.name}"
            verdict = failures.judge(self._settings, code, details)
            if verdict is RetryDecision.FINAL:
                raise failures.refusal(self._settings, details or code.name) from error
            if verdict is RetryDecision.TOKEN:
                self._token = ""
        except ValueError as error:  # a call on a channel that `close` has closed meanwhile
            why = str(error)
        self._leave()
        raise CoordinatorUnavailableError(why)

    def close(self) -> None:
        """End the call that is under way. Any thread may call this."""
        channel = self._channel
        if channel is not None:
            channel.close()

    def _connect(self, address: str) -> grpc.Channel:
        if self._channel is None:
            if self._credentials is None:
                self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
            else:
                self._channel = grpc.secure_channel(address, self._credentials, options=CHANNEL_OPTIONS)
        return self._channel

    def _leave(self) -> None:
        """Use the next member, by a new connection: this one may be dead without notice."""
        self._order = [*self._order[1:], self._order[0]]
        channel, self._channel = self._channel, None
        if channel is not None:
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
