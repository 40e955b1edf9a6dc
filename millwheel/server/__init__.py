"""Puts the roles together: a development server in one process, and the daemons of a cluster."""
