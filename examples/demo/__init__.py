"""The demonstration: ``python -m examples.demo``, or ``make demo``.

It starts a server, submits Zeitgeist (:mod:`examples.zeitgeist`), has a Spark job stream the flights of 2013 into it
in the order in which they left, and shows what was found: every alert, the counts, latency and lag, and a picture of
the year. A second pass with a known number of late and of duplicate records checks that both are told apart.
The exit code is 0 only if all of it is as it should be.
"""
