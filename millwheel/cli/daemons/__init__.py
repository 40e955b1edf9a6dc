"""The daemons: one role each as a process of its own, and what all of them share. Start reading at ``frame.py``."""
