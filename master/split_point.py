"""The key at which an interval's load is halved, from the sample of keys that its owner has reported. Pure."""

from __future__ import annotations

from typing import Final

from millwheel.master import reshape_plans
from millwheel.master.load_book import Division, LoadBook, divide
from millwheel.rpc.failures import FailureCode, RequestError

__all__ = ["halving"]

_MIN_SIDE_SHARE: Final = 0.1
"""A split that leaves one side with a smaller share of the load is not worth it."""


def halving(place: reshape_plans.FoundInterval, book: LoadBook) -> Division:
    """Return the key that halves an interval's load; FAILED_PRECONDITION if no report or no key allows that."""
    if place.code is None:
        # A stream's log is refused later, with any key.
        return Division(b"\0", 0.0)
    load = book.load_of(place.interval)
    if load is None or not load.sample:
        raise RequestError(
            FailureCode.FAILED_PRECONDITION,
            f"where to split {reshape_plans.shown(place)} is not known: its owner has not reported its keys' load yet",
            "give a key to split at (`--at KEY`), or try again once records come in",
            reason="NO_SAMPLE",
        )
    division = divide(place.keys, load.sample)
    if division is not None and division.smaller >= _MIN_SIDE_SHARE:
        return division
    hottest = max(load.sample, key=lambda one: one.share)
    raise RequestError(
        FailureCode.FAILED_PRECONDITION,
        f"no key divides the load of {reshape_plans.shown(place)}: "
        f"key {hottest.key.decode('utf-8', 'backslashreplace')!r} alone has {hottest.share:.0%} of it",
        "a key is never split: spread it over several in the program (`spread=` of `.window(...).aggregate` does, for "
        "records that differ), "
        "or give a key to split at (`--at KEY`)",
        reason="HOT_KEY",
    )
