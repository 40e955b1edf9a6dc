"""Value types and pure algebra that every part shares: time, keys, intervals, low watermarks."""
