"""A harness for users' own tests: topologies run in one process, in virtual time."""
