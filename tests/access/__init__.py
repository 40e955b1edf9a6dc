"""Tests of who may call what, with real certificates, tokens and connections."""
