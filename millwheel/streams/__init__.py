"""Programs as streams, step by step, over the computations of :mod:`millwheel.sdk` and the windows."""

from millwheel.streams.keyed import KeyedStream
from millwheel.streams.stream import Stream
from millwheel.streams.topology import Topology
from millwheel.streams.windowed import WindowedStream

__all__ = ["KeyedStream", "Stream", "Topology", "WindowedStream"]
