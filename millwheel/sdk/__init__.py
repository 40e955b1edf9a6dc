"""The API for writing topologies. :mod:`millwheel` re-exports its public names."""
