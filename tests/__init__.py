"""The tests. MillWheel comes before gRPC, whose handlers of forks it turns off."""

import millwheel  # noqa: F401
