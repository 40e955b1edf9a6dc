"""The paper's running example (section 2, figures 1 to 3 and 9) on the flights of New York in 2013.

Zeitgeist finds spikes and dips in a stream of events. It compares the stream with a model that it learns from the same
stream. Here the events are departures from the city's three airports. A blizzard causes a dip in departures. A day with
large delays is a spike. A departure's event time is the *scheduled* one. It becomes known only when the aircraft
leaves, up to 1,301 minutes later. So the stream is naturally out of order, and "delayed" and "cancelled" look the same
until the low watermark has passed.

::

    departures ─┬─ key(origin) ─► window-counter ── windows ─┬─ key(airport, slot) ─► traffic-model ── traffic-models ─┐
                │                                            ├─ key(city) ──────────► delay-model ──── delay-models ─┐ │
                │                                            └─ key(airport) ───────► dip-detector ◄─ key(airport) ──┼─┘
                └─ key(city) ──────────────────────────────────────────────────────► spike-detector ◄─ key(city) ────┘

Both detectors produce ``anomalies``. If no departure is late, the anomalies depend only on the data. The order of
arrival, the timing, restarts and parallelism do not change them. :mod:`examples.zeitgeist.reference` computes the same
anomalies from the whole table. Late departures are dropped. Which departures are late depends on when the watermarks
were published.
"""
