"""The example's topology, for ``millwheel topology submit examples.zeitgeist.topology:zeitgeist``."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import millwheel as mw
from examples.zeitgeist.clock import NEW_YORK
from examples.zeitgeist.detectors import DipDetector, SpikeDetector
from examples.zeitgeist.models import DelayModelCalculator, TrafficModelCalculator
from examples.zeitgeist.records import Anomaly, DelayModel, Departure, TrafficModel, WindowCount
from examples.zeitgeist.window_counter import WindowCounter

__all__ = ["END", "WINTER_END", "build", "winter", "zeitgeist"]

END: Final = mw.from_datetime(datetime(2014, 1, 1, tzinfo=NEW_YORK))
"""The end of the period that the flights cover."""

WINTER_END: Final = mw.from_datetime(datetime(2013, 2, 12, tzinfo=NEW_YORK))
"""The end of a shorter period, which contains the blizzard."""


def build(until: mw.Timestamp = END) -> mw.Topology:
    """Return the topology. Hours are counted up to ``until``.

    Late records are dropped and counted, as in the paper's Zeitgeist (section 4.5). A window is never corrected.
    """
    topology = mw.Topology("zeitgeist")
    topology.source("departures", Departure)
    topology.add(
        WindowCounter(until),
        inputs={"departures": mw.key("origin")},
        outputs={"windows": WindowCount},
        late=mw.Late.DROP,
    )
    topology.add(
        TrafficModelCalculator,
        name="traffic-model",
        inputs={"windows": mw.key("airport", "slot")},
        outputs={"traffic-models": TrafficModel},
    )
    topology.add(
        DelayModelCalculator,
        name="delay-model",
        inputs={"windows": mw.key("city")},
        outputs={"delay-models": DelayModel},
    )
    topology.add(
        DipDetector,
        inputs={"windows": mw.key("airport"), "traffic-models": mw.key("airport")},
        outputs={"anomalies": Anomaly},
    )
    topology.add(
        SpikeDetector,
        inputs={"departures": mw.key("city"), "delay-models": mw.key("city")},
        outputs={"anomalies": Anomaly},
        late=mw.Late.DROP,
    )
    return topology


zeitgeist = build()
winter = build(WINTER_END)
