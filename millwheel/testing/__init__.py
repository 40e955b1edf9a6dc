"""A harness for users' own tests: topologies run in one process, in virtual time (see ``harness.py``)."""

from millwheel.testing.harness import Produced, TopologyHarness

__all__ = ["Produced", "TopologyHarness"]
