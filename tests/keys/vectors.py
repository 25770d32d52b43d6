"""The published vectors, as docs/vectors holds them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from posthouse.keys import NodeKey

DOCS = Path(__file__).parents[2] / "docs"


def read(name: str) -> Any:
    """Return the content of one vector file."""
    return json.loads((DOCS / "vectors" / f"{name}.json").read_text("utf-8"))


def keys() -> dict[str, NodeKey]:
    """Return the keys that the vectors speak of, by name."""
    return {entry["name"]: NodeKey(bytes.fromhex(entry["seed"])) for entry in read("identity")["keys"]}
