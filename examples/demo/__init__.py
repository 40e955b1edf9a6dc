"""The demonstration: ``python -m examples.demo``, or ``make demo``.

It starts a server and submits Zeitgeist (:mod:`examples.zeitgeist`). A Spark job streams the flights of 2013 into it,
in the order in which they left. The demonstration shows every alert, the counts, latency and lag, and a picture of the
year. A second job reads the alerts and the models' states back. A second pass contains a known number of late records
and of duplicates. It checks that MillWheel counts both exactly. The exit code is 0 only if every check succeeds.
"""
