"""Nexmark's queries by MillWheel, Bytewax and Flink on the same file of events (`make bench-nexmark`)."""
