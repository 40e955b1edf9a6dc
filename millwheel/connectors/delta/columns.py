"""Whether the columns of a table are those of the records. Pure.

Columns are as the log of a table has them: a schema in JSON, whose types are texts or objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millwheel.connectors.delta.errors import DeltaTableError

__all__ = ["fitting"]


def fitting(
    table: str, there: Mapping[str, Any], own: Mapping[str, Any], *, partitions: tuple[Sequence[str], Sequence[str]],
    merge: bool,
) -> tuple[list[str], bool]:  # fmt: skip
    """The columns of the records in the order in which they are written, and whether the table has others, too.

    Args:
        table: The place of the table, for people.
        there: The schema of the table.
        own: The schema of the records.
        partitions: The columns by which the table is partitioned, and those that the sink states.
        merge: Whether each may have columns that the other one has not.

    Raises:
        DeltaTableError: Records of these columns do not go into the table.
    """
    theirs, ours = _types(there), _types(own)
    other = [
        f"{name} is {theirs[name]} in the table, and {ours[name]} in the records"
        for name in ours
        if name in theirs and theirs[name] != ours[name]
    ]
    added, missing = [name for name in ours if name not in theirs], [name for name in theirs if name not in ours]
    if not merge:
        other += [f"{name} ({ours[name]}) is not in the table" for name in added]
        other += [f"{name} ({theirs[name]}) is not in the records" for name in missing]
    if partitions[0] != partitions[1]:
        stated = [f"by {', '.join(one)}" if one else "not at all" for one in partitions]
        other.append(f"it is partitioned {stated[0]}, and the sink states {stated[1]}")
    if other:
        hint = "" if merge or not (added or missing) else ", give merge_schema=True for columns that are added"
        raise DeltaTableError(
            f"the records do not fit into the table {table}: {'; '.join(other)}. Change the table or the type of the "
            f"records{hint}, or write to another table"
        )
    return [name for name in theirs if name in ours] + added, bool(added or missing)


def _types(schema: Mapping[str, Any]) -> dict[str, str]:
    """The types by the names of columns, as Spark writes them. Whether a column may be empty is left out."""
    return {field["name"]: _text(field["type"]) for field in schema["fields"]}


def _text(kind: Any) -> str:
    match kind:
        case {"type": "struct"}:
            return f"struct<{', '.join(f'{name}: {text}' for name, text in _types(kind).items())}>"
        case {"type": "array", "elementType": element}:
            return f"array<{_text(element)}>"
        case {"type": "map", "keyType": key, "valueType": value}:
            return f"map<{_text(key)}, {_text(value)}>"
    return str(kind)
