"""The master: topologies, interval maps and their assignment to workers (7.1).

In this package ``known`` is the :class:`~millwheel.model.catalog.Catalog` that a plan starts from: what the master
knows of the coordinator. ``catalog`` is the module of its records. A transaction compares what its plan has read of
``known``.
"""
