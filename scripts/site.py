"""Build the documentation as a site into build/site: `make site`.

The pages are copied with the files they link to, laid out as in the repository, so the links that work on a code host
also work on the site. The build needs no network, and the site loads nothing from another place. A link that leads
nowhere fails the build, because mkdocs.yml is strict.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "mkdocs.yml"
#: What pages may link to; everything else is linked by its address.
COPIED = ("*.md", "LICENSE", "docs/**/*", "examples/**/*", "deploy/**/*", "bench/**/*")
#: A resource that a browser loads by itself; links that a reader follows may lead elsewhere.
_LOADED = re.compile(r"""<(?:script|img|iframe)[^>]+src=["']?(https?:)?//|<link[^>]+rel=["']?stylesheet[^>]+//""")


def main() -> None:
    """Copy the pages, build the site and check it."""
    pages, site = ROOT / "build" / "pages", ROOT / "build" / "site"
    shutil.rmtree(pages, ignore_errors=True)
    copy_pages(pages)
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--clean", "--config-file", str(CONFIG)]
    quiet = {"NO_MKDOCS_2_WARNING": "1"}  # an advertisement for the library's successor
    subprocess.run(command, check=True, env=os.environ | quiet)
    loading = sorted(str(page.relative_to(site)) for page in pages_that_load(site))
    if loading:
        sys.exit(f"these pages load something from another place: {', '.join(loading)}")
    sys.stdout.write(f"open {(site / 'index.html').relative_to(ROOT)}\n")


def copy_pages(target: Path) -> None:
    """Copy pages and what they link to, without what Python leaves behind."""
    for pattern in COPIED:
        for path in ROOT.glob(pattern):
            if path.is_file() and "__pycache__" not in path.parts:
                copied = target / path.relative_to(ROOT)
                copied.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copied)


def pages_that_load(site: Path) -> Iterator[Path]:
    """Yield the pages that would load something over the network."""
    return (page for page in site.rglob("*.html") if _LOADED.search(page.read_text()))


if __name__ == "__main__":
    main()
