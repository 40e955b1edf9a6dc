"""What a release consists of, compared with its sources and tried where nothing else is installed: ``make dist``."""
