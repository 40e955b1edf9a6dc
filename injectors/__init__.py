"""Injectors: records from files, a message bus and Spark, with their low watermarks (5.2)."""
