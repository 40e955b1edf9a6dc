"""The rules for a new version of a running topology. They are those of the master (section 4.1)."""

from __future__ import annotations

from millwheel.master.updating import update_problems
from millwheel.sdk.errors import TopologyError, UsageError
from millwheel.sdk.topology import TopologyGraph

__all__ = ["check_update"]


def check_update(before: TopologyGraph, after: TopologyGraph) -> None:
    """Check that a topology may be replaced by a new version.

    Args:
        before: The present version.
        after: The new version.

    Raises:
        TopologyError: ``after`` has mistakes, or may not replace ``before``. The error lists all problems.
        UsageError: ``after`` has another name.
    """
    after.check()
    if after.name != before.name:
        raise UsageError(f"topology {before.name!r} cannot be updated by one named {after.name!r}: give both one name")
    problems = update_problems(before.to_spec(), after.to_spec())
    if problems:
        raise TopologyError(after.name, problems)
