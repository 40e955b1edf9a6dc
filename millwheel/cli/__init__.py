"""The command ``millwheel``."""
