"""The computations of simulated topologies: user code that forwards records, and checks what the system does to it.

Invariant: a block sends the ids of the records that it consumed exactly once to each of its outputs, sooner or later.
Only library windows and operators repeat ids (:mod:`simulation.blocks.library`, :mod:`simulation.blocks.operators`).
Most blocks number their steps with a counter in the key's state. So the sinks show the order of a key's steps, through
all crashes. Hooks record in ``SEEN`` what no hook may see. ``DIVIDED`` names the computations that were in several
intervals, which decides what may be late. A record without ids is *chaff*: every block forwards it.
"""

from simulation.blocks.assembly import assemble, plain_node
from simulation.blocks.base import turns
from simulation.blocks.connected import OUTSIDE, Feed, FeedSplit, Fetched, connected_differences
from simulation.blocks.library import LIBRARY, spans_of
from simulation.blocks.operators import OPERATORS, PIPELINE, Row
from simulation.blocks.records import DIVIDED, FAILED, SEEN, STATELESS, Item

__all__ = [
    "DIVIDED",
    "FAILED",
    "LIBRARY",
    "OPERATORS",
    "OUTSIDE",
    "PIPELINE",
    "SEEN",
    "STATELESS",
    "Feed",
    "FeedSplit",
    "Fetched",
    "Item",
    "Row",
    "assemble",
    "connected_differences",
    "plain_node",
    "spans_of",
    "turns",
]
