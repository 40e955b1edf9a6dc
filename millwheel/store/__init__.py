"""The state store: fenced journals and per-key state behind one contract (section 6)."""
