"""Every code of a finding is documented, and every code that the audit can write is declared."""

from __future__ import annotations

import re
from pathlib import Path

from posthouse.pipeline.audit.finding import CODES

ROOT = Path(__file__).parents[3]


def test_every_code_is_documented() -> None:
    page = (ROOT / "docs/how-to/pipeline-audit.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert documented == set(CODES)


def test_every_code_is_written_somewhere() -> None:
    source = "".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "src/posthouse/pipeline/audit").rglob("*.py")
        if path.name != "finding.py"
    )
    assert [code for code in CODES if f'"{code}"' not in source] == []
