"""Mutations of complete deliveries, whose positions are known as ranges, and of columns (section 6.1.1)."""

from __future__ import annotations

from typing import Final

from millwheel.client.injector import column_division, tables
from millwheel.client.injector.core import InjectorCore
from millwheel.client.injector.outbound_queue import InjectedBatch
from millwheel.client.injector.rerouting import Rerouting
from millwheel.master.services import routing
from millwheel.rpc import deliveries
from millwheel.rpc.columns import RecordColumns
from millwheel.sdk import column_plan, column_reading, expression_columns
from millwheel.sdk.column_fields import ColumnFields
from millwheel.sdk.column_reading import ColumnReading, ColumnRows
from millwheel.worker.dedup import check, renaming
from millwheel.worker.dedup.pieces import PositionPiece
from millwheel.worker.dedup.positions import PositionSource
from millwheel.worker.dedup.tables import Tables
from millwheel.worker.interval.hooks.pane_gate import PaneGate
from millwheel.worker.interval.hooks.pane_reading import PaneReader
from millwheel.worker.interval.hooks.runner import Runner
from millwheel.worker.interval.outbox.outbox import Outbox
from millwheel.worker.interval.panes.key_index import KeyIndex
from millwheel.worker.interval.panes.table import PaneTable, WindowPanes
from simulation.mutations.base import rewriting

__all__: list[str] = []

_EDGES: Final = "tests/worker/dedup/test_position_edges.py::test_a_position_is_known_exactly_if_it_is_committed"
_INDEX: Final = "tests/worker/interval/test_key_index.py"
_BY_COLUMNS: Final = "tests/windows/test_by_columns.py::test_columns_and_hooks_agree_in_these_cases"
_FILTERS: Final = "tests/windows/test_filtered_columns.py::test_"
_FEW: Final = "a test shows it by itself, in seconds; seeds were not tried"

rewriting(
    "ranges-for-all-keys",
    "G1",
    "a range says nothing of the keys of another piece",
    PositionPiece.agrees_with,
    " and self.ranges == other.ranges",
    "",
    seeds=0,
    test=_EDGES,
    why=_FEW,
)

rewriting(
    "ranges-committed-as-a-whole",
    "G1",
    "a commit says no more of a range than the records that it has",
    check.ranges_of,
    "indexes is None or len(indexes) == count",
    "indexes is None or len(indexes) > 0",
    seeds=0,
    test=_EDGES,
    why=_FEW,
)

rewriting(
    "pending-ranges-unseen",
    "G1",
    "a record of a pending range is not taken a second time",
    PositionSource,
    "pending.ranges.overlaps(whole) or ",
    "",
    seeds=0,
    test=_EDGES,
    why=_FEW,
)

rewriting(
    "ranges-not-replayed",
    "G1",
    "a new owner knows the ranges that its predecessors have committed",
    Tables.replay,
    "remember_ranges(ranges)",
    "remember_ranges(())",
    seeds=0,
    test=_EDGES,
    why=_FEW,
)

rewriting(
    "ranges-known-as-holes",
    "G1",
    "a position that a range has is no hole of a mark",
    PositionPiece.apply,
    "(h in seen or h in ranges)",
    "h in seen",
    seeds=0,
    test=_EDGES,
    why=_FEW,
)

rewriting(
    "moved-records-as-ranges",
    "G1",
    "a delivery is complete only if all of its positions were accepted for these intervals",
    Rerouting,
    "keys, first, now, accepted",
    "keys, first, now, accepted, 0",
    seeds=0,
    test="tests/injectors/test_core_routing.py::test_records_that_moved_are_sent_by_their_positions",
    why=_FEW,
)

rewriting(
    "gaps-as-ranges",
    "G1",
    "a delivery is complete only if a record was accepted at each position between",
    InjectorCore,
    "self._gapless[scope] = last\n",
    "self._gapless[scope] = 0\n",
    seeds=0,
    test="tests/injectors/test_complete_deliveries.py::test_positions_with_gaps_are_given_singly",
    why=_FEW,
)

rewriting(
    "parts-as-ranges",
    "G1",
    "what is sent again in part is given by its positions",
    InjectedBatch.complete,
    "sent is None and ",
    "",
    seeds=0,
    test="tests/injectors/test_complete_deliveries.py::test_a_part_of_a_batch_is_given_singly",
    why=_FEW,
)

rewriting(
    "ranges-before-their-format",
    "G12",
    "complete deliveries are stated from the cluster's format 4 on",
    routing,
    "position_ranges=known.format >= POSITION_RANGES",
    "position_ranges=True",
    seeds=0,
    test="tests/master/test_position_ranges.py::test_ranges_wait_for_their_format",
    why=_FEW,
)

rewriting(
    "restored-ranges-of-former-journals",
    "G1",
    "the ranges of a restored journal name the fresh sequences",
    renaming,
    "_renamed(ranges, names)",
    "ranges",
    seeds=0,
    test="tests/snapshots/test_renaming.py::test_renamed_ids_are_those_of_the_fresh_journals",
    why=_FEW,
)

rewriting(
    "names-of-any-length",
    "G13",
    "the names of columns have a bound in all records that are made of them",
    RecordColumns,
    "_why_long_names(schema, len(times))",
    "_why_long_names(schema, 0)",
    seeds=0,
    test="tests/rpc/test_columns.py::test_malformed_columns_are_refused[long_names]",
    why=_FEW,
)

rewriting(
    "columns-half-validated",
    "G1",
    "columns are validated completely before anything is read",
    RecordColumns,
    "column.validate(full=True)",
    "column.validate()",
    seeds=0,
    test="tests/rpc/test_columns.py::test_malformed_columns_are_refused[no_text]",
    why=_FEW,
)

rewriting(
    "numbers-without-lengths",
    "G1",
    "keys that differ in zeros at their ends have numbers of their own",
    KeyIndex,
    "other = self._lengths[found] != lengths",
    "other = self._lengths[found] < 0",
    seeds=0,
    test=f"{_INDEX}::test_keys_that_differ_in_zeros_at_their_ends_are_others",
    why=_FEW,
)

rewriting(
    "rows-of-closed-panes",
    "G1",
    "a pane that has left the table takes no record there, by the number of its key",
    WindowPanes.close,
    "self.numbered = None",
    "pass",
    seeds=0,
    test=f"{_INDEX}::test_rows_by_numbers_are_the_rows_of_the_keys",
    why=_FEW,
)

rewriting(
    "numbers-of-former-generations",
    "G1",
    "a number means nothing after its index was emptied",
    WindowPanes.rows_of_numbers,
    "if generation != index.generation:",
    "if generation < 0:",
    seeds=0,
    test=f"{_INDEX}::test_rows_by_numbers_are_the_rows_of_the_keys",
    why=_FEW,
)

rewriting(
    "numbers-kept-for-ever",
    "G13",
    "the index forgets keys when it has far more than the windows",
    PaneTable.numbers_of,
    "index.empty()",
    "pass",
    seeds=0,
    test=f"{_INDEX}::test_the_index_forgets_keys_of_former_windows",
    why=_FEW,
)

rewriting(
    "late-by-the-newest-record",
    "G14",
    "records are on time together if the oldest of them is",
    PaneGate,
    "on_time or low >= watermark",
    "on_time or high >= watermark",
    seeds=0,
    test="tests/windows/test_by_columns.py::test_late_records_of_an_open_window_are_dropped_alike",
    why=_FEW,
)

rewriting(
    "over-by-the-last-window",
    "G1",
    "records are added together if the first of their windows is not over",
    PaneGate,
    "first + size <= watermark or not (",
    "last + size <= watermark or not (",
    seeds=0,
    test=f"{_BY_COLUMNS}[None-records come late]",
    why=_FEW,
)

rewriting(
    "results-of-several-targets-alike",
    "G1",
    "productions are grouped together if all of them have one target",
    Outbox,
    "for one in (streams, targets)",
    "for one in (streams,)",
    seeds=0,
    test="tests/worker/interval/test_productions.py::test_one_production_among_others_reaches_its_own_target",
    why=_FEW,
)

rewriting(
    "misread-by-earlier-versions",
    "G1",
    "a request that an earlier version would misread names its journal where that finds none",
    deliveries,
    'request.newer_journal, request.journal = request.journal, ""',
    "pass",
    seeds=0,
    test="tests/worker/test_delivery_service.py::test_an_earlier_version_owns_no_newer_delivery",
    why=_FEW,
)

rewriting(
    "slices-with-whole-tables",
    "G13",
    "a slice is sent in buffers of its own",
    RecordColumns.to_wire,
    "given if _is_exact(given) else exact(given)",
    "given",
    seeds=0,
    test="tests/rpc/test_columns.py::test_columns_arrive_as_they_were_sent",
    why=_FEW,
)

rewriting(
    "bytes-beside-values",
    "G13",
    "buffers of columns have the bytes of their values alone",
    RecordColumns,
    "if not right or [len(one) for one in buffers] != _sizes_of(",
    "if not right or False and [len(one) for one in buffers] != _sizes_of(",
    seeds=0,
    test="tests/rpc/test_columns.py::test_malformed_columns_are_refused[behind_the_texts]",
    why=_FEW,
)

rewriting(
    "places-for-all-keys",
    "G13",
    "a window with few panes has no place for each key of the index",
    WindowPanes.rows_of_numbers,
    "if len(index.keys) > _SPARSE",
    "if len(index.keys) < 0 * _SPARSE",
    seeds=0,
    test=f"{_INDEX}::test_a_window_of_few_panes_has_no_place_for_each_key",
    why=_FEW,
)

rewriting(
    "growth-with-any-keys",
    "G8",
    "the index forgets keys that need too many steps when it grows",
    KeyIndex,
    "return not len(left)",
    "return True",
    seeds=0,
    test=f"{_INDEX}::test_growth_ends_although_keys_meet_in_one_place",
    why=_FEW,
)

rewriting(
    "fields-of-other-types",
    "G1",
    "a field is taken from a column if the values of all columns can be read",
    ColumnFields.columns_of,
    "if any(types.get(name, kind) is not kind for name, kind in columns.items()):",
    "if False:",
    seeds=0,
    test="tests/sdk/test_column_fields.py::test_each_wanted_field_needs_its_column",
    why=_FEW,
)

rewriting(
    "fields-of-missing-columns",
    "G1",
    "a field is taken from a column if no row lacks a field that is required",
    ColumnFields.columns_of,
    "if not self._needed <= columns.keys() or (",
    "if (",
    seeds=0,
    test="tests/sdk/test_column_fields.py::test_what_a_column_may_not_say_is_left_to_values",
    why=_FEW,
)

rewriting(
    "fields-before-functions",
    "G1",
    "what a function or a filter makes of a value is not taken from its column",
    column_plan.column_reading,
    "if any(one.steps is None for one in readings):",
    "if False:",
    seeds=0,
    test="tests/windows/test_by_column_fields.py::test_values_are_made_where_only_they_say_it",
    why=_FEW,
)

rewriting(
    "filters-of-columns-passed-over",
    "G1",
    "a filter by an expression drops rows of a table as it drops records",
    ColumnRows.filter,
    "if kept.all():",
    "if True:",
    seeds=0,
    test=_FILTERS + "steps_have_the_effects_they_have_on_records",
    why=_FEW,
)

rewriting(
    "fields-of-dropped-rows",
    "G1",
    "an aggregate takes the fields of the rows that the filters have passed",
    ColumnRows.fields,
    "== self._count else self.places",
    "== self._count else self.places - self.places[0]",
    seeds=0,
    test=_FILTERS + "filters_by_expressions_need_no_values",
    why=_FEW,
)

rewriting(
    "computed-fields-of-dropped-rows",
    "G1",
    "what select has computed leaves with the rows that a later filter drops",
    ColumnRows.filter,
    "{name: column[chosen] for",
    "{name: column[: len(chosen)] for",
    seeds=0,
    test=_FILTERS + "steps_have_the_effects_they_have_on_records",
    why=_FEW,
)

rewriting(
    "computed-fields-of-other-types",
    "G1",
    "an aggregate takes a computed field of exactly the type that it wants",
    ColumnReading,
    "if made is not kind:",
    "if False:",
    seeds=0,
    test=_FILTERS + "a_computed_field_has_the_type_that_is_wanted",
    why=_FEW,
)

rewriting(
    "defaults-that-are-not-made",
    "G1",
    "a record whose value cannot be made, as a default fails, is not added by columns",
    column_reading,
    "and not has_plain_default(field)",
    "and False",
    seeds=0,
    test=_FILTERS + "a_value_that_cannot_be_made_is_no_record",
    why=_FEW,
)

rewriting(
    "values-of-refusing-classes",
    "G1",
    "a record whose value its class refuses to make is not added by columns",
    column_reading,
    " or type(step.to) is not type(msgspec.Struct)",
    "",
    seeds=0,
    test=_FILTERS + "a_value_that_cannot_be_made_is_no_record",
    why=_FEW,
)

rewriting(
    "filters-in-no-order",
    "G1",
    "no filter computes a row that an earlier one has dropped, so it cannot fail for it",
    column_reading.conditions_of,
    'if condition.operator != "&":',
    "if True:",
    seeds=0,
    test=_FILTERS + "filters_by_expressions_need_no_values",
    why=_FEW,
)

rewriting(
    "expressions-of-any-operands",
    "G1",
    "an expression is computed by columns only if its operands are alike",
    expression_columns,
    "with_none or _likes(*kinds)",
    "None not in kinds",
    seeds=0,
    test="tests/sdk/test_expression_columns.py::test_what_no_column_says_is_left_to_the_records",
    why=_FEW,
)

rewriting(
    "fields-of-codecs",
    "G1",
    "what a codec of the user makes of a value is not taken from its column",
    column_plan.column_reading,
    "stream.codec is None or stream.codec.format is not ValueFormat.MSGPACK",
    "stream.codec is None",
    seeds=0,
    test="tests/windows/test_by_column_fields.py::test_a_codec_of_the_user_decides_what_a_field_is",
    why=_FEW,
)

rewriting(
    "fields-of-other-records",
    "G1",
    "of columns, the numbers of the records at hand are taken",
    PaneReader,
    "rows = np.arange(len(records))[rows][found.places]",
    "rows = np.arange(len(found.places))",
    seeds=0,
    test="tests/windows/test_by_column_fields.py::test_fields_of_columns_have_the_effects_of_records",
    why=_FEW,
)

rewriting(
    "integers-that-wrap",
    "G1",
    "an expression whose integers may leave 64 bits is not computed by columns",
    expression_columns,
    "if bounds[0] < -_MOST or bounds[1] > _MOST:",
    "if False:",
    seeds=0,
    test="tests/sdk/test_expression_columns.py::test_what_may_differ_is_left_to_the_records",
    why=_FEW,
)

rewriting(
    "integers-as-other-floats",
    "G1",
    "an integer that no float has is not compared with floats by columns",
    expression_columns,
    "if one.bounds is not None and (one.bounds[0] < -_EXACT or one.bounds[1] > _EXACT):",
    "if False:",
    seeds=0,
    test="tests/sdk/test_expression_columns.py::test_what_may_differ_is_left_to_the_records",
    why=_FEW,
)

rewriting(
    "values-of-dropped-records",
    "G1",
    "a record behind a late one that is dropped has its own value",
    Runner,
    "value = UNDECODED  #",
    "pass  #",
    seeds=0,
    test="tests/worker/interval/test_scenarios.py::test_a_record_behind_a_late_one_has_its_own_value",
    why=_FEW,
)

rewriting(
    "deliveries-of-a-whole-part",
    "G13",
    "a part of a table is cut into deliveries, though all its keys are of one interval",
    column_division,
    "if count <= DELIVERY_RECORDS and (",
    "if (",
    seeds=0,
    test="tests/injectors/test_dividing.py::test_no_delivery_is_larger_with_keys_of_one_interval",
    why=_FEW,
)

rewriting(
    "deliveries-of-any-bytes",
    "G13",
    "a delivery of a table has at most so many bytes, though all keys of the part are of one interval",
    column_division,
    "columns.size <= DELIVERY_BYTES or",
    "columns.size or",
    seeds=0,
    test="tests/injectors/test_dividing.py::test_a_delivery_has_few_bytes_with_keys_of_one_interval",
    why=_FEW,
)

rewriting(
    "parts-by-a-former-routing",
    "G13",
    "a third of the window has room for a part of a table, by the routing at which it is accepted",
    tables,
    "count = part.within(*self._most())",
    "count = whole",
    seeds=0,
    test="tests/injectors/test_table_parts.py::test_a_part_is_cut_where_consumers_have_joined",
    why=_FEW,
)

rewriting(
    "keys-at-a-bound-below-it",
    "G11",
    "a key that is the bound of two intervals is the first one of the upper interval",
    column_division,
    "reached = pc.greater_equal(texts,",
    "reached = pc.greater(texts,",
    seeds=0,
    test="tests/injectors/test_dividing.py::test_each_record_goes_to_the_interval_of_its_key",
    why=_FEW,
)
