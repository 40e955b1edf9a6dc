"""A leading master that changes often, with the reason as far as it is known: lost leases, and restarts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from millwheel.model.time import Duration, Timestamp, format_duration, seconds
from millwheel.model.wording import clock_time
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["INTERRUPTED", "interruption_text", "leader_problems"]

ELECTION_WINDOW: Final[Duration] = seconds(900)
STEADY: Final[Duration] = seconds(300)
"""A master that has led for longer is no problem any more."""
INTERRUPTED: Final = "master.interrupted"
"""The kind of an event that says why a master lost its lease. Its record forgets that when the master is restarted."""
MAX_ELECTIONS: Final = 2
"""More elections than these within that time are a problem. A restart of all masters, one by one, takes two."""

_LEASE: Final = (
    "Set `lease_seconds = 15` (default: 3) under `[master]` in the configuration of the masters, such as "
    "/etc/millwheel/millwheel.toml. Then run `systemctl restart millwheel-master` on each, one after the other. For "
    "good, give their machines CPU"
)
_LOGS: Final = "See the logs of those that you did not restart: they say why they had ended"
_MENDED: Final = "All that lost a lease were restarted since: if that was the mend, wait"


def leader_problems(
    events: Iterable[catalog.EventRecord], masters: Mapping[str, catalog.MasterRecord], now: Timestamp
) -> Iterator[str]:
    """Yield a problem if the leading master changes often, with what is known of each master.

    Args:
        events: The events in the log, the oldest first.
        masters: The registered masters, by address.
        now: The wall time.
    """
    events = list(events)
    elections = [one for one in events if one.kind == "master.elected"]
    recent = [one for one in elections[1:] if now - one.at_us <= ELECTION_WINDOW]
    if len(recent) <= MAX_ELECTIONS or now - recent[-1].at_us > STEADY:
        return
    since = now - ELECTION_WINDOW
    lost = {one.subject: one for one in events if one.kind == INTERRUPTED and one.at_us >= since}
    known, mended, is_lease = [], bool(lost), bool(lost)
    for address in sorted({*masters, *lost}):
        record = masters.get(address, catalog.MasterRecord())
        if record.interruption and record.interrupted_at_us >= since:
            known.append(interruption_text(address, record))
            mended, is_lease = False, True
        elif address in lost:
            known.append(lost[address].text)
            mended = mended and record.started_at_us > lost[address].at_us
        if record.started_at_us >= since:
            known.append(f"{address} was started at {clock_time(record.started_at_us)}")
    why = "; ".join(known) or "no master says why"
    remedy = _MENDED if mended else _LEASE if is_lease else _LOGS
    yield (
        f"the leading master has changed {len(recent)} times within {format_duration(ELECTION_WINDOW)}: {why}. "
        f"{remedy}. This problem ends by itself after {format_duration(STEADY)} without a change"
    )


def interruption_text(address: str, record: catalog.MasterRecord) -> str:
    """Describe the last time when a master was not registered for a while."""
    return f"{address} lost its lease at {clock_time(record.interrupted_at_us)}: {record.interruption}"
