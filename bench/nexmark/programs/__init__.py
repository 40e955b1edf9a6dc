"""The queries as programs of other systems. Each runs in the environment of its system, and imports nothing from here.

The variable ``PEER_JOB`` has the job as JSON: :class:`bench.nexmark.systems.QueryJob`.
"""
