"""The worker's drivers: they run the cores of this process's intervals against store, network and clock."""
