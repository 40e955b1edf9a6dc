"""A deterministic simulation of the whole cluster: the product's code runs on a simulated world in virtual time.

Masters, workers, authority candidates, injectors, subscribers and an operator run as they do in a cluster, with all of
their I/O code. The simulation replaces what is under them: time, network, store, coordinator, clocks and randomness.
One seed determines every event. A second run with the same seed produces the same history, byte by byte. `python -m
simulation --help` describes the command.
"""

import os

# Simulated timestamps start at 0, so the product must accept any timestamp.
os.environ.setdefault("MILLWHEEL_ANY_TIMESTAMP", "1")
