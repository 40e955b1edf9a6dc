"""From a batch to the journal: sealing, appends, and the checkpoints that keep the journal short (6.1.2; G2, G12)."""
