"""Grafana dashboards, made from code. ``python -m deploy.grafana`` writes them into ``dashboards/``."""
