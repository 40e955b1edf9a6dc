"""State that grows: collections in pages, which are journaled, stored and read one by one (section 4.4)."""
