"""Ten incidents of a production cluster, each caused, found and mended as docs/incidents.md says: `make incidents`."""
