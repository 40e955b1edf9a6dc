"""Encoded values as tables of Arrow. Its modules import pyarrow, an extra: only what needs tables imports them."""
