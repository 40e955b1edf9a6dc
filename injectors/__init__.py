"""Injectors for common kinds of sources (section 5.2): files; others stand beside what they read from."""
