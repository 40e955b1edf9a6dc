"""The container image."""
