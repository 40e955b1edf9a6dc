"""A topology whose records come over HTTP: its output shows each of them, and one customer's orders wait for a file."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

import millwheel as mw

OPEN = "MILLWHEEL_TEST_POSTED_OPEN"
"""The variable that names the file. While there is none, the orders of ``stuck`` fail."""


class Order(msgspec.Struct):
    user: str
    number: int
    at: int = 0
    id: str = ""


class Echo(mw.Computation[Order, int]):
    """Passes each order on, with how many the customer has had, and its time."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Order]) -> None:
        opened = Path(os.environ.get(OPEN, "/"))
        if ctx.key == "stuck" and not opened.exists():
            opened.with_suffix(".tried").touch()
            raise RuntimeError("not open yet")
        ctx.state += 1
        number, at = record.value.number, int(record.timestamp)
        ctx.produce("echo", {"user": ctx.key, "number": number, "nth": ctx.state, "late": record.late, "at": at})


posted = mw.Topology("posted")
posted.source("orders", Order, id_slack=mw.seconds(30))
posted.add(
    Echo,
    inputs={"orders": mw.key("user")},
    outputs={"echo": dict},
    on_failure=mw.retry(initial=mw.milliseconds(20), maximum=mw.milliseconds(50)),
)
