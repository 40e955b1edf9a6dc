"""A harness for users' tests: it runs a topology in one process, in virtual time (see ``harness.py``)."""

from millwheel.testing.cores import HookTimeoutError
from millwheel.testing.harness import Produced, TopologyHarness

__all__ = ["HookTimeoutError", "Produced", "TopologyHarness"]
