"""Mutations of columns with nulls, and of keys that are integers: None is no number, and no key (4.2, 5.2)."""

from __future__ import annotations

from typing import Final

from millwheel.agg import choices
from millwheel.agg.folds import ChosenFold
from millwheel.client.injector import table_forms
from millwheel.rpc import columns, nullable_column
from millwheel.rpc.columns import RecordColumns
from millwheel.sdk import expression_columns
from millwheel.sdk.column_fields import ColumnFields
from simulation.mutations.base import rewriting

__all__: list[str] = []

_FEW: Final = "a test shows it by itself, in seconds; seeds were not tried"
_WINDOWS: Final = "tests/windows/test_nulls_by_columns.py::test_"
_EFFECTS: Final = _WINDOWS + "columns_with_nulls_have_the_effects_of_records"
_FORMS: Final = "tests/rpc/test_columns.py::test_"

rewriting(
    "nulls-as-zeros",
    "G1",
    "a column with nulls says which of its items are None",
    RecordColumns.column,
    "if column.null_count:",
    "if False:",
    seeds=0,
    test=_EFFECTS,
    why=_FEW,
)

rewriting(
    "nulls-where-none-is-no-value",
    "G1",
    "a null in a field that is never None fails its record",
    ColumnFields,
    "if nulls and not nulls & types.keys() <= self._take_nulls:",
    "if False:",
    seeds=0,
    test=_WINDOWS + "a_null_in_a_field_that_is_never_none_fails_alone",
    why=_FEW,
)

rewriting(
    "none-equal-to-zero",
    "G1",
    "None is equal to None alone",
    expression_columns,
    " & there[0] & there[1]",
    "",
    seeds=0,
    test=_EFFECTS,
    why=_FEW,
)

rewriting(
    "none-as-true",
    "G1",
    "None is not true",
    expression_columns,
    "return found if one.valid is None else found & one.valid",
    "return found if one.valid is None else found | ~one.valid",
    seeds=0,
    test=_EFFECTS,
    why=_FEW,
)

rewriting(
    "none-among-items",
    "G1",
    "None is none of the items of is_in",
    expression_columns,
    "return _is_in(one._replace(valid=None), items) & one.valid",
    "return _is_in(one._replace(valid=None), items) | ~one.valid",
    seeds=0,
    test=_EFFECTS,
    why=_FEW,
)

rewriting(
    "none-in-sums",
    "G1",
    "arithmetic with None is left to the records",
    expression_columns,
    '    if one.valid is not None:\n        raise NotFoldedError("with None',
    '    if False:\n        raise NotFoldedError("with None',
    seeds=0,
    test=_EFFECTS,
    why=_FEW,
)

rewriting(
    "right-sides-for-all-records",
    "G1",
    "a condition behind & or | that reads a None is computed for the records that need it",
    expression_columns,
    "if not any(isinstance(columns[name], NullableColumn) for name in read):",
    "if True:",
    seeds=0,
    test=_WINDOWS + "columns_with_nulls_need_no_values",
    why=_FEW,
)

rewriting(
    "numbers-of-other-records",
    "G1",
    "what is read of the records that count is put at their places",
    ChosenFold,
    "some = {name: items_at(column, chosen) for name, column in own.items()}",
    "some = {name: items_at(column, chosen[::-1].copy()) for name, column in own.items()}",
    seeds=0,
    test=_EFFECTS,
    why=_FEW,
)

rewriting(
    "nulls-of-the-whole-delivery",
    "G1",
    "which items are None is taken from the same rows as the items",
    nullable_column,
    "valid, items = column.valid[rows], items_at(column.items, rows)",
    "valid, items = column.valid[: len(column.items[rows])], items_at(column.items, rows)",
    seeds=0,
    test=_EFFECTS,
    why=_FEW,
)

rewriting(
    "least-of-none",
    "G1",
    "min and max leave out None by columns",
    choices,
    "return fold if plain is kind else present(fold, reader, record_type)",
    "return fold",
    seeds=0,
    test=_WINDOWS + "columns_with_nulls_need_no_values",
    why=_FEW,
)

rewriting(
    "nulls-against-the-type",
    "G1",
    "nulls are sent by columns where the declared type allows None",
    table_forms,
    "if column.null_count and not all(_takes_none(one, name) for one in declared):",
    "if False:",
    seeds=0,
    test="tests/injectors/test_tables.py::test_nulls_of_a_field_that_may_be_none_go_by_columns",
    why=_FEW,
)

rewriting(
    "nulls-of-keys-received",
    "G1",
    "a column of keys with nulls is refused",
    columns,
    "if message.key and schema.get_field_index(message.key) in nulls:",
    "if False:",
    seeds=0,
    test=_FORMS + "malformed_columns_are_refused[a_key_with_nulls]",
    why=_FEW,
)

rewriting(
    "bytes-beside-validity",
    "G13",
    "a buffer of validity has a bit for each value, and no more bytes",
    RecordColumns,
    "right = validity is None or len(validity) == _bit_bytes(len(times))",
    "right = True",
    seeds=0,
    test=_FORMS + "malformed_columns_are_refused[a_longer_validity]",
    why=_FEW,
)
