"""Another version and this one side by side, on real processes: ``make test-upgrade`` (docs/upgrading.md)."""
