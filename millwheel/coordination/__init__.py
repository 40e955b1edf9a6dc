"""Coordination: leases, watches and transactions on a small keyspace, for ownership and leadership (7.1)."""
