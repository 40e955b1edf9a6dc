"""Sources: where the records of a topology's streams come from (section 5.2). See docs/sources.md."""

from millwheel.sources.base import Read, Source, SplitReader, Splits

__all__ = ["Read", "Source", "SplitReader", "Splits"]
