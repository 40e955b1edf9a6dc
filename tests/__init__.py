"""The tests. MillWheel comes before gRPC, whose handlers of forks it turns off."""

import os

# Most tests count time from 0, and so do programs of this package that are run by themselves. What
# refuses such times is tested where the option says so.
os.environ.setdefault("MILLWHEEL_ANY_TIMESTAMP", "1")

import millwheel  # noqa: F401
