"""Coordination: leases, watches and transactions on a small keyspace, for ownership and leadership (section 7.1)."""
