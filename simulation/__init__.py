"""The whole cluster from one seed, in virtual time: the real shells on a simulated world.

Masters, workers, authority candidates, injectors, subscribers and an operator run as they do in a cluster, with all
of their I/O code; what is replaced is the world under them: time, network, store, coordinator, clocks, chance. One
seed decides everything that happens, and replays it to the same byte. `python -m simulation --help` runs it.
"""

import os

# Times are counted from 0 here.
os.environ.setdefault("MILLWHEEL_ANY_TIMESTAMP", "1")
