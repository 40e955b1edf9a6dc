"""Rate limiting: a token bucket for each client, in event time.

A client may make ten requests at once and one more each second. The answer depends on the order of the requests: after
``ordered_by_time`` the hook gets them by their timestamps. No clock is read: the result is the same when requests are
read again, however fast.
"""

from __future__ import annotations

from typing import Final

import msgspec

import millwheel as mw

__all__ = ["BURST", "Bucket", "Request", "rate_limit"]

SECOND: Final = mw.seconds(1)
BURST: Final = 10


class Request(msgspec.Struct, frozen=True):
    """A client asks for something."""

    client: str
    path: str


class Bucket(msgspec.Struct):
    """When the bucket of a client is full again, if no request comes."""

    full_at: int = 0


class Limit(mw.Computation[Request, Bucket]):
    """Each request moves the time at which the bucket is full by one second. It may be ten seconds away at most."""

    def process_record(self, ctx: mw.Context[Bucket], record: mw.Record[Request]) -> None:
        full_at = max(ctx.state.full_at, record.timestamp) + SECOND
        if full_at > record.timestamp + BURST * SECOND:
            ctx.produce("refused", record.value)
            return
        ctx.state.full_at = full_at
        ctx.set_timer(mw.Timestamp(full_at))
        ctx.produce("allowed", record.value)

    def process_timer(self, ctx: mw.Context[Bucket], timer: mw.Timer) -> None:
        """The bucket is full: the client needs no state."""
        del ctx.state


rate_limit = mw.Topology("rate-limit")
requests = rate_limit.source("requests", Request).key_by("client").ordered_by_time()
requests.process("limit", Limit, {"allowed": Request, "refused": Request})
