"""``python -m deploy.helm``: write the chart's values.schema.json."""

from __future__ import annotations

from deploy.helm.schema import FILE, text

__all__: list[str] = []

if __name__ == "__main__":
    FILE.write_text(text())
