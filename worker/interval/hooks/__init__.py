"""Running hooks: which key is next, records and timers, and keys whose hooks fail or wait (4.1, 4.6; G5, G6)."""
