"""The count as programs of other systems. Each runs in the environment of its system. It imports nothing from
here but modules of this folder.

The variable ``PEER_JOB`` has the job as JSON: :class:`bench.peers.jobs.Job`.
"""
