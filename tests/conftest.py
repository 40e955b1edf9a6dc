"""For every test: a failure is told, whatever other threads do at that moment."""

from __future__ import annotations

import os
import traceback

# Most tests count time from 0. What refuses such times is tested where the option says so.
os.environ.setdefault("MILLWHEEL_ANY_TIMESTAMP", "1")

# pytest parses the source of what failed. In some releases of CPython (3.11.7 is one) that ends with "AST constructor
# recursion depth mismatch" if another thread parses, too, and the whole run with it. Threads of the Cassandra driver do
# when they log an error: tracebacks parse each line, to underline the part of it that raised. They do without.
setattr(traceback, "_extract_caret_anchors_from_line_segment", lambda _: None)  # noqa: B010  # its name is private
