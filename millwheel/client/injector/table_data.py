"""Tables of other libraries, read as tables of Arrow (section 5.2)."""

from __future__ import annotations

from typing import Any, Final

from millwheel.sdk.errors import UsageError, ValueEncodeError

__all__ = ["arrow_of"]

_MANY_ROWS: Final = 2_000
"""A frame with more rows is read by Arrow, which uses several threads."""


def arrow_of(data: Any) -> Any:
    """The table or record batch that some data are, or that they can be read as.

    Args:
        data: A table or a record batch of Arrow, or what has the Arrow PyCapsule interface, as data frames have.

    Raises:
        UsageError: They cannot be read so. pyarrow cannot be loaded.
        ValueEncodeError: A column has values that Arrow does not allow.
    """
    try:
        import pyarrow as pa
    except ImportError as error:
        raise UsageError(f"tables need pyarrow: install MillWheel with the extra arrow ({error})") from error
    if isinstance(data, (pa.Table, pa.RecordBatch)):
        return data
    try:
        return _read(data)
    except (TypeError, ValueError, pa.ArrowException) as error:
        if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
            why = f"a table of Arrow cannot have what this {type(data).__name__} has: {error}; no row is sent"
            raise ValueEncodeError(why) from error
        made = "; `pyarrow.Table.from_pylist` makes one of a list of dicts" if isinstance(data, list) else ""
        raise UsageError(
            f"send_table takes a table or record batch of Arrow, or what can be read as one, and no "
            f"{type(data).__name__}{made} ({error})"
        ) from error


def _read(data: Any) -> Any:
    """The table of other data. The index of a data frame of pandas is no column."""
    import pyarrow as pa

    kinds = [one.__module__.partition(".")[0] for one in type(data).__mro__]
    if "pandas" not in kinds or not hasattr(data, "columns"):
        return pa.table(data)
    small = _small_frame(data) if kinds[0] == "pandas" and len(data) <= _MANY_ROWS else None
    return pa.Table.from_pandas(data, preserve_index=False) if small is None else small


def _small_frame(frame: Any) -> Any:
    """The columns of a data frame of pandas, as ``pyarrow.Table.from_pandas`` converts them. None: it decides.

    Most of its time for a few rows is that of the description of the frame, which is not sent.
    """
    import pandas as pd
    import pyarrow as pa

    names = list(frame.columns)
    if not names or {type(name) for name in names} != {str} or len(set(names)) < len(names):
        return None
    columns = []
    for _, series in frame.items():
        if isinstance(series.dtype, pd.SparseDtype):
            return None
        try:
            columns.append(pa.array(series, from_pandas=True))
        except (TypeError, ValueError, pa.ArrowException):
            return None
        if not isinstance(columns[-1], pa.Array):
            return None
    return pa.RecordBatch.from_arrays(columns, names=names)
