"""The contract of connectors as tests, which the tests of a source or a sink inherit (docs/connectors.md).

It needs no library: pytest and unittest collect the methods whose names begin with ``test_``.
"""

from millwheel.testing.connectors.rules import BrokenContractError
from millwheel.testing.connectors.sinks import SinkContract
from millwheel.testing.connectors.sources import SourceContract

__all__ = ["BrokenContractError", "SinkContract", "SourceContract"]
