"""Injecting records from outside: the client side of section 5.2."""
