"""Every stored and sent form, recorded byte for byte: ``python -m tests.formats --write`` (docs/upgrading.md)."""
