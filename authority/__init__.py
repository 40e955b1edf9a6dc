"""The low watermark authority: one input watermark per group, fenced by sequencers (7.2)."""
