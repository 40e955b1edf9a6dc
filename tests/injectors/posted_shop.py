"""A topology whose records come over HTTP: its output shows each of them, and one customer's orders wait for a file."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

import millwheel as mw
from millwheel import connectors

OPEN = "MILLWHEEL_TEST_POSTED_OPEN"
"""The variable that names the file. While there is none, the orders of ``stuck`` fail."""


class Order(msgspec.Struct):
    user: str
    number: int
    at: int = 0
    id: str = ""


class Echoed(msgspec.Struct):
    user: str
    number: int
    nth: int
    late: bool
    at: int


class Echo(mw.Computation[Order, int]):
    """Passes each order on, with how many the customer has had, and its time."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Order]) -> None:
        opened = Path(os.environ.get(OPEN, "/"))
        if ctx.key == "stuck" and not opened.exists():
            opened.with_suffix(".tried").touch()
            raise RuntimeError("not open yet")
        ctx.state += 1
        ctx.produce("echo", Echoed(ctx.key, record.value.number, ctx.state, record.late, int(record.timestamp)))


posted = mw.Topology("posted")
posted.source("orders", Order, id_slack=mw.seconds(30))
posted.add(
    Echo,
    inputs={"orders": mw.key("user")},
    outputs={"echo": Echoed},
    on_failure=mw.retry(initial=mw.milliseconds(20), maximum=mw.milliseconds(50)),
)


def hook_url() -> str:
    return os.environ["MILLWHEEL_TEST_HOOK"]


def hook_token() -> dict[str, str]:
    return {"X-Token": os.environ["MILLWHEEL_TEST_HOOK_TOKEN"]}


forward = mw.Topology("forward")
forward.source("orders", Order)
hook = connectors.webhook(hook_url, headers=hook_token, deadline=mw.seconds(30))
forward.external("posted/echo", Echoed).to("orders-hook", hook, batch_records=40)
forward.add(Echo, inputs={"orders": mw.key("user")}, outputs={"echo": Echoed})
