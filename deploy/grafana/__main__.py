"""``python -m deploy.grafana``: write the dashboards into ``dashboards/``, or into the folder that is named."""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.grafana.files import FOLDER, dashboards

if __name__ == "__main__":
    folder = Path(sys.argv[1]) if sys.argv[1:] else FOLDER
    for name, text in dashboards().items():
        (folder / name).write_text(text)
