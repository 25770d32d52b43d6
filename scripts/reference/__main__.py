"""Regenerate docs/reference."""

from __future__ import annotations

import sys
from pathlib import Path

from scripts.reference.pages import render_all

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"


def main() -> None:
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, text in render_all().items():
        path = REFERENCE / name
        is_new = not path.exists() or path.read_text() != text
        if is_new:
            path.write_text(text)
        sys.stdout.write(f"docs/reference/{name} {'written' if is_new else 'unchanged'}\n")


if __name__ == "__main__":
    main()
