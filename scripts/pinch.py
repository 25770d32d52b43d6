"""Regenerate the Python code of the Pinch schema: `python -m scripts.pinch`.

The relay and the example agent have a copy of the schema each, because the example imports nothing of the relay; a
test holds both to what this writes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = ROOT / "src" / "posthouse" / "relay" / "pinch" / "schema"
FOLDERS = (SCHEMA, ROOT / "examples" / "pinch_agent")
NAME = "pinch.proto"
GENERATED = ("pinch_pb2.py", "pinch_pb2.pyi")


def generate(schema: Path, target: Path) -> None:
    """Write the generated modules of a folder's schema into a folder."""
    status = protoc.main(["protoc", f"-I{schema}", f"--python_out={target}", f"--pyi_out={target}", NAME])
    if status:
        raise RuntimeError(f"protoc ended with {status}")


def main() -> int:
    """Bring every copy up to date."""
    for folder in FOLDERS:
        (folder / NAME).write_bytes((SCHEMA / NAME).read_bytes())
        generate(folder, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
