"""What a new version of a topology may not do while it runs: the same rules as a master's (section 4.1)."""

from __future__ import annotations

from millwheel.master.updating import update_problems
from millwheel.sdk.errors import TopologyError, UsageError
from millwheel.sdk.topology import Topology

__all__ = ["check_update"]


def check_update(before: Topology, after: Topology) -> None:
    """Raise a TopologyError that lists all that is wrong with ``after``, or with its following on ``before``.

    UsageError if it has another name.
    """
    after.check()
    if after.name != before.name:
        raise UsageError(f"topology {before.name!r} cannot be updated by one named {after.name!r}: give both one name")
    problems = update_problems(before.to_spec(), after.to_spec())
    if problems:
        raise TopologyError(after.name, problems)
