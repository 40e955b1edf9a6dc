"""Mutations of panes that leave in the order of their rows, and of packed results (sections 4.3, 4.6, 6.2)."""

from __future__ import annotations

from typing import Final

from millwheel.rpc import packed_values
from millwheel.rpc.packed_values import PackedValues
from millwheel.windows import packed_results
from millwheel.worker.interval.hooks.pane_firing import PaneFiring
from millwheel.worker.interval.hooks.pane_results import ResultMaker
from millwheel.worker.interval.panes import changes, key_index
from millwheel.worker.interval.panes.table import WindowPanes
from simulation.mutations.base import rewriting

__all__: list[str] = []

_CORE: Final = "tests/worker/interval/test_panes.py::test_"
_INDEX: Final = "tests/worker/interval/test_key_index.py::test_"
_PACKED: Final = "tests/worker/interval/test_packed_results.py::test_"
_FEW: Final = "a test shows it by itself, in seconds; seeds were not tried"

rewriting(
    "leaving-panes-not-in-bases",
    "G12",
    "a base has the panes whose results only a batch behind it has, also where they leave in the order of rows",
    changes,
    "window.leaving.start if window.leaving else window.first",
    "window.first",
    seeds=0,
    test=_CORE + "a_base_amid_a_batch_has_the_committed_panes",
    why=_FEW,
)

rewriting(
    "unsealed-rows-in-bases",
    "G12",
    "a base has no pane that only a batch behind it makes, also where panes leave in the order of rows",
    changes,
    "np.arange(start, window.sealed), window.keys[start : window.sealed]",
    "np.arange(start, len(window.keys)), window.keys[start:]",
    seeds=0,
    test=_CORE + "a_base_amid_a_batch_has_the_committed_panes",
    why=_FEW,
)

rewriting(
    "moved-panes-taken-for-first",
    "G1",
    "a window from which a pane has moved looks its rows up",
    WindowPanes.close,
    "self.first = -1",
    "pass",
    seeds=0,
    test=_INDEX + "rows_by_numbers_are_the_rows_of_the_keys",
    why=_FEW,
)

rewriting(
    "known-keys-taken-for-new",
    "G1",
    "a key gets a new row by its number only where each pane has its number",
    WindowPanes.rows_of_numbers,
    "count == self.count",
    "True",
    seeds=0,
    test=_INDEX + "rows_by_numbers_are_the_rows_of_the_keys",
    why=_FEW,
)

rewriting(
    "finished-panes-taken-for-known",
    "G1",
    "a key whose pane has its result has no row by its number",
    WindowPanes.rows_of_numbers,
    "rows < max(self.first, 0)",
    "rows < 0",
    seeds=0,
    test=_INDEX + "rows_by_numbers_are_the_rows_of_the_keys",
    why=_FEW,
)

rewriting(
    "new-keys-taken-with-others",
    "G1",
    "keys with rows by numbers that follow one another are taken together, and only if no other key is between",
    WindowPanes.rows_of_numbers,
    "if len(missing) == end - low",
    "if True",
    seeds=0,
    test=_INDEX + "rows_by_numbers_are_the_rows_of_the_keys",
    why=_FEW,
)

rewriting(
    "keys-of-a-length-out-of-order",
    "G1",
    "keys of one length are made together, and each has the number of its own bytes",
    key_index,
    "_keys_of_length(content, starts[mine], length)",
    "_keys_of_length(content, np.sort(starts[mine])[::-1], length)",
    seeds=0,
    test=_INDEX + "many_keys_have_numbers_although_the_table_grows",
    why=_FEW,
)

rewriting(
    "readers-make-rows",
    "G1",
    "a thread that asks for keys of a window stores nothing there",
    WindowPanes.first_keys,
    "first, rows = self.first, self._rows",
    "first, self._rows = self.first, self.listed(); rows = self._rows",
    seeds=0,
    test=_INDEX + "a_reader_at_the_end_of_a_recovery_changes_nothing",
    why=_FEW,
)

rewriting(
    "rows-counted-before-they-are-made",
    "G13",
    "a window counts the memory of its rows by key if it has them",
    WindowPanes.bytes,
    "(0 if self._rows is None else _ROW_BYTES)",
    "(0 if self.numbered else _ROW_BYTES)",
    seeds=0,
    test=_INDEX + "a_window_counts_no_rows_by_key_before_it_has_them",
    why=_FEW,
)

rewriting(
    "large-attempts-repeated",
    "G8",
    "where results were made together and one failed, so many are not tried together again",
    PaneFiring,
    "_AT_ONCE if done < failed else _MOST_AT_ONCE",
    "_MOST_AT_ONCE",
    seeds=0,
    test=_CORE + "a_failing_result_repeats_others_a_few_times",
    why=_FEW,
)

rewriting(
    "packed-results-for-computations",
    "G9",
    "results are packed only for logs: other consumers read each by itself",
    ResultMaker,
    "if self._unread and windows.pack_columns",
    "if windows.pack_columns",
    seeds=0,
    test=_PACKED + "results_that_a_consumer_reads_are_not_packed",
    why=_FEW,
)

rewriting(
    "packed-values-sent-as-stored",
    "G1",
    "a response has packed values as protobuf has them, and not as the journal does",
    PackedValues,
    "number << 3 | _LENGTH_DELIMITED",
    "_TYPE",
    seeds=0,
    test="tests/rpc/test_packed_values.py::test_packed_values_are_stored_and_sent_as_others",
    why=_FEW,
)

rewriting(
    "packed-parts-out-of-place",
    "G1",
    "what joins packed values moves the places of each part behind those before it",
    packed_values,
    "part._bounds[1:] - part._bounds[0] + end",
    "part._bounds[1:] + end",
    seeds=0,
    test="tests/rpc/test_packed_values.py::test_joined_values_keep_their_order",
    why=_FEW,
)

rewriting(
    "packed-results-in-another-order",
    "G2",
    "each result has the key and the value of its own pane, where they differ in length",
    packed_results,
    "[bounds[:-1][mine]]",
    "[np.sort(bounds[:-1][mine])[::-1]]",
    seeds=0,
    test="tests/windows/test_encoded_results.py::test_packed_results_are_those_of_the_codec",
    why=_FEW,
)
