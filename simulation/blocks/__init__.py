"""The computations of simulated topologies: user code that passes records on, and watches what the system does to it.

Whatever a block does, the ids of the records that it took leave it exactly once on each of its outputs, sooner or
later; library windows alone repeat them (:mod:`simulation.blocks.library`). Most blocks number their steps by a counter
in the key's state, so that the order of a key's steps shows at the sinks, through all crashes. What a hook sees
that no hook may see is noted in ``SEEN``. What is known of the cluster that decides on what may be late is in
``DIVIDED``. A record without ids is *chaff*: every block passes it on.
"""

from simulation.blocks.assembly import assemble, plain_node
from simulation.blocks.base import turns
from simulation.blocks.library import LIBRARY, spans_of
from simulation.blocks.records import DIVIDED, FAILED, SEEN, STATELESS, Item

__all__ = ["DIVIDED", "FAILED", "LIBRARY", "SEEN", "STATELESS", "Item", "assemble", "plain_node", "spans_of", "turns"]
