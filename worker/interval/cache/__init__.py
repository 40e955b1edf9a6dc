"""The cache of key states, and the pages of growing states in it (sections 4.4, 8.3)."""
