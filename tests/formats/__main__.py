"""``python -m tests.formats --write``: record new forms. Without the option: name what is not recorded."""

from __future__ import annotations

import sys

from . import golden


def main() -> int:
    """Record, or name what is missing. Lines that have changed are never recorded."""
    if changed := golden.changed_lines():
        print("changed, though older processes rely on it:", *changed, sep="\n  ")
        return 1
    new = golden.write() if "--write" in sys.argv[1:] else golden.missing()
    print(f"{len(new)} forms are new", *new, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
