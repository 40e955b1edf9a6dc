"""Stubs generated from proto/millwheel/etcd/v3 by `make proto`; not edited by hand."""
