"""Computations whose hook gets many records at once, as columns (section 4.1)."""
