"""The worker's shell: drives the cores of the intervals that this process owns against store, network and clock."""
