"""The figures of docs/performance.md: measured in turn, kept as JSON, and drawn."""
