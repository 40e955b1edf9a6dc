"""The panes of windows that are kept by columns: one table for an interval, in place of a state for each key."""
