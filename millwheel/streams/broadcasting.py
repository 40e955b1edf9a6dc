"""How a join with a broadcast table becomes two computations: the table, and the join with its copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from millwheel.operators import BroadcastAsOfJoin, BroadcastJoin, BroadcastTable, in_order
from millwheel.operators.ordered import LIMIT
from millwheel.sdk.computation import Computation
from millwheel.sdk.errors import UsageError
from millwheel.sdk.keys import everything, key
from millwheel.sdk.typeinfo import members
from millwheel.streams.declaring import Input, Keyed, StepOptions, declare_step, refuse_dead_letters, sides
from millwheel.streams.derivations import spread_key, text_key_reader
from millwheel.streams.steps import Branch

__all__ = ["declare_broadcast"]

_ONE_TIMER: Final = "has one timer for all records of a copy that wait, so a dead letter would be this timer"


def declare_broadcast(
    given: Input,
    table: Keyed,
    name: str,
    function: Callable[[Any, Mapping[str, Any]], Any],
    result: Any,
    *,
    as_of: bool,
    removes: Callable[[Any], bool] | None,
    copies: int,
    limit: int,
    options: StepOptions,
    keyed: bool,
) -> None:
    """Declare ``name-table``, which sends changes to all copies, and ``name``, which joins each record with its copy.

    ``keyed``: whether the key is the user's.

    Raises:
        UsageError: As by :meth:`Stream.join_broadcast`.
    """
    left, rows = sides(name, given, table)
    for side in (left, rows):
        for problem in side.extractor.problems(side.known_type):
            raise UsageError(f"join_broadcast({name!r}): {problem}")
    if type(None) in members(rows.known_type):
        raise UsageError(
            f"join_broadcast({name!r}): a row may be None, which stands for a row that was removed: let a value of "
            "another kind remove a row, by removes="
        )
    if not options.get("exactly_once", True):
        raise UsageError(
            f"step {name!r} needs exactly_once: a change of its table that came twice could undo a newer one"
        )
    if as_of:
        refuse_dead_letters(name, options, _ONE_TIMER)
    row, changes, row_key = rows.known_type, f"{name}-changes", text_key_reader(rows.extractor)
    kept: BroadcastTable[Any] = BroadcastTable(
        row_key, changes, row, copies=copies, limit=limit, by_time=as_of, removes=removes
    )
    of_table = options.copy()
    of_table.pop("late", None)
    of_table.pop("strong", None)
    all_rows = rows._replace(extractor=key(everything), port="")
    # All rows may change at one time. So as many changes wait as there may be rows.
    kept_rows: Computation[Any, Any] = in_order(kept, row, limit=max(limit, LIMIT)) if as_of else kept
    declare_step(f"{name}-table", kept_rows, [all_rows], {}, of_table)
    join: Computation[Any, Any] = (
        BroadcastAsOfJoin(function, name, (left.known_type, row, result))
        if as_of
        else BroadcastJoin(function, name, row, result, text_key_reader(left.extractor) if keyed else None)
    )
    spread = left._replace(extractor=spread_key(left.extractor, left.record_type, copies))
    of_changes = Input(given.topology, (Branch(changes),), kept.change, key("copy"), rows.port, never_late=True)
    declare_step(name, join, [spread, of_changes], {}, options)
