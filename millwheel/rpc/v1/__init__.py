"""Stubs generated from proto/millwheel/v1 by `make proto`; not edited by hand."""
