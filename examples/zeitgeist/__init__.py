"""The paper's running example (section 2, figures 1 to 3 and 9) on the flights of New York in 2013.

Zeitgeist finds what spikes and what dips in a stream of events, against a model that it learns from the
same stream. Here the events are departures from the city's three airports: a blizzard is a dip in
departures, and a day that goes wrong is a spike of delay. A departure's event time is the *scheduled* one, and it is
known only when the aircraft leaves, up to 1,301 minutes later: the stream is out of order by nature, and
"delayed" and "cancelled" look the same until the low watermark has passed.

::

    departures ─┬─ key(origin) ─► window-counter ── windows ─┬─ key(airport, slot) ─► traffic-model ── traffic-models ─┐
                │                                            ├─ key(city) ──────────► delay-model ──── delay-models ─┐ │
                │                                            └─ key(airport) ───────► dip-detector ◄─ key(airport) ──┼─┘
                └─ key(city) ──────────────────────────────────────────────────────► spike-detector ◄─ key(city) ────┘

Both detectors produce ``anomalies``. As long as no departure is late, these are a function of the data alone, whatever
the order of arrival, the timing, the restarts and the parallelism: :mod:`examples.zeitgeist.reference` computes them
from the whole table. Late departures are dropped, and which are late is a matter of when watermarks were published.
"""
