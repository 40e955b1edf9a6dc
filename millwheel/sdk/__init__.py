"""What users write topologies with; its public names are re-exported by :mod:`millwheel`."""
