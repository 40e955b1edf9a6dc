"""A state machine with time-outs: orders are created, paid and shipped, or stuck on the way.

The steps of an order arrive in any order: the state is the set of those that have come. The time-outs are of the wall
clock, because somebody should look into an order that waits now, whatever the low watermark is. Each step sets the
order's timer again. A finished order leaves no state behind.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

import millwheel as mw

__all__ = ["WAIT", "Order", "Step", "Stuck", "order_steps"]

Step = Literal["created", "paid", "shipped"]
WAIT: Final[dict[Step, mw.Duration]] = {"created": mw.minutes(5), "paid": mw.minutes(30), "shipped": mw.hours(48)}
"""The steps in their order, and how long an order may wait for each."""
WALL: Final = mw.TimeDomain.PROCESSING_TIME


class Order(msgspec.Struct, frozen=True):
    """An order has come to a step."""

    order: str
    step: Step


class Stuck(msgspec.Struct, frozen=True):
    """An order that waits for a step for too long."""

    order: str
    waits_for: Step


class Follow(mw.Computation[Order, set[Step]]):
    def process_record(self, ctx: mw.Context[set[Step]], record: mw.Record[Order]) -> None:
        ctx.state.add(record.value.step)
        if len(ctx.state) < len(WAIT):
            ctx.set_timer(mw.Timestamp(ctx.now + WAIT[first_missing(ctx.state)]), domain=WALL)
        else:
            ctx.produce("done", ctx.key)
            ctx.cancel_timer(domain=WALL)
            del ctx.state

    def process_timer(self, ctx: mw.Context[set[Step]], timer: mw.Timer) -> None:
        ctx.produce("stuck", Stuck(ctx.key, first_missing(ctx.state)))


def first_missing(steps: set[Step]) -> Step:
    return next(step for step in WAIT if step not in steps)


order_steps = mw.Topology("order-steps")
order_steps.source("orders", Order).key_by("order").process("follow", Follow, {"done": str, "stuck": Stuck})
