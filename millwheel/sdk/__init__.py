"""What users write their topologies with: computations, contexts, records, timers, codecs (5)."""
