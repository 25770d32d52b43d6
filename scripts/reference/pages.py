"""Which pages the reference has, and the registry each comes from.

A page whose registry does not exist yet renders to None and is left out; the index lists what is there.
"""

from __future__ import annotations

from collections.abc import Callable

from scripts.reference import commands, errors, journal, lake_tables, metrics, settings
from scripts.reference.markdown import HEAD

#: File name -> title, what the page is about, and how it is rendered.
PAGES: dict[str, tuple[str, str, Callable[[], str | None]]] = {
    "commands.md": ("Commands", "every `posthouse` command with its options", commands.render),
    "settings.md": ("Settings", "every setting: file, environment, flag, default", settings.render),
    "errors.md": ("Errors", "every error code: HTTP status, exit code, text and hint", errors.render),
    "metrics.md": ("Metrics", "every metric that `/metrics` shows", metrics.render),
    "tables.md": ("Tables of the lake", "every table of the lake with its columns", lake_tables.render),
    "journal.md": ("Journal records", "every type of record with its fields", journal.render),
}


def render_all() -> dict[str, str]:
    """Return every page of the reference, by file name."""
    bodies = {name: render() for name, (_, _, render) in PAGES.items()}
    pages = {name: f"{HEAD}\n# {PAGES[name][0]}\n\n{body}" for name, body in bodies.items() if body is not None}
    links = "\n".join(f"- [{PAGES[name][0]}]({name}): {PAGES[name][1]}" for name in pages)
    index = f"{HEAD}\n# Reference\n\n{links}\n"
    return {"README.md": index, **pages, "sources.yml": lake_tables.render_sources()}
