"""Shared value types and pure algorithms: time, keys, key intervals, low watermarks and the catalog."""
