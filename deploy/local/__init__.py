"""Real components of a cluster, installed and run on this machine: for tests, and for trying a cluster out."""
