"""The low watermark authority: one input watermark per computation, fenced by sequencers (7.2)."""
