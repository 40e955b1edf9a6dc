"""Streams and states as tables of Arrow, for pandas, Polars, DuckDB and all else that reads Arrow (docs/arrow.md).

::

    from millwheel.client.arrow import read_state, read_stream

    windows = read_stream("zeitgeist/windows", timestamp_column="at").to_pandas()
    models = read_state("zeitgeist/model")

It needs pyarrow: install MillWheel with the extra ``arrow``.
"""

try:
    import pyarrow as _pyarrow
except ModuleNotFoundError as error:
    from millwheel.sdk.errors import UsageError

    raise UsageError("tables need pyarrow: install MillWheel with the extra arrow") from error

from millwheel.client.arrow.state import read_state
from millwheel.client.arrow.stream import read_stream

__all__ = ["read_state", "read_stream"]

del _pyarrow
