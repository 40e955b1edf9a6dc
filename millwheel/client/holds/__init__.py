"""Explains what holds a low watermark back (section 4.5; G8)."""
