"""The web console: a page for operators, and the HTTP API that gives it its data (docs/console.md)."""
