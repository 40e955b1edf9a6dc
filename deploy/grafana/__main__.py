"""``python -m deploy.grafana``: write the dashboards into ``dashboards/``."""

from __future__ import annotations

import sys

from deploy.grafana.files import FOLDER, dashboards

if __name__ == "__main__":
    for name, text in dashboards().items():
        (FOLDER / name).write_text(text)
        print(f"{FOLDER / name}", file=sys.stderr)
