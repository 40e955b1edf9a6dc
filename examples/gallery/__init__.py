"""Small programs, each of which shows one thing. ``docs/gallery.md`` says what."""
