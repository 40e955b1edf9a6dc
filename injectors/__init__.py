"""Injectors for common kinds of sources: files and Spark (section 5.2). Other injectors are kept with their source."""
