"""State that grows."""
