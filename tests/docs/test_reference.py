from __future__ import annotations

import re

from posthouse.cli.commands import build
from posthouse.cli.man import walk
from posthouse.journal.records import RECORD_TYPES
from posthouse.model.errors import ERROR_CODES
from posthouse.model.settings import SETTINGS
from posthouse.pipeline.lake.lake import arrow_schema, declared_names
from scripts.reference.metrics import declared
from scripts.reference.pages import render_all
from tests.docs.pages import ROOT, text_of


def test_reference_is_what_the_registries_say() -> None:
    written = {path.name: path.read_text() for path in (ROOT / "docs" / "reference").iterdir()}
    rendered = render_all()
    differing = [name for name in written | rendered if written.get(name) != rendered.get(name)]
    assert differing == [], "run `make docs`"


def test_every_command_is_documented() -> None:
    page = text_of("docs/reference/commands.md")
    missing = [" ".join(path) for path, _ in walk(build(), ("posthouse",)) if f"# {' '.join(path)}\n" not in page]
    assert missing == []


def test_every_error_code_is_documented_with_text_and_hint() -> None:
    page = text_of("docs/reference/errors.md")
    assert [code for code in ERROR_CODES if f"| `{code}` |" not in page] == []
    assert [code for code, spec in ERROR_CODES.items() if not spec.text or not spec.hint] == []


def test_every_setting_is_documented_with_its_three_names() -> None:
    page = text_of("docs/reference/settings.md")
    names = [name for s in SETTINGS.values() for name in (s.name, s.environment, s.flag)]
    assert [name for name in names if f"`{name}`" not in page] == []
    assert [s.name for s in SETTINGS.values() if not s.help] == []


def test_every_metric_is_documented() -> None:
    metrics = declared()
    page = text_of("docs/reference/metrics.md") if metrics else ""
    assert [metric.name for metric in metrics if f"`{metric.name}`" not in page] == []


def test_the_sources_for_dbt_declare_every_column_of_every_table_of_the_lake() -> None:
    found: dict[str, list[str]] = {}
    for indent, name in re.findall(r"^( +)- name: (\w+)$", text_of("docs/reference/sources.yml"), re.MULTILINE):
        if len(indent) == 6:
            found[name] = []
        elif len(indent) == 10:
            found[list(found)[-1]].append(name)
    assert found == {name: arrow_schema(name).names for name in declared_names()}


def test_every_record_type_is_documented_with_its_fields() -> None:
    page = text_of("docs/reference/journal.md")
    for record in RECORD_TYPES.values():
        section = page.partition(f"## {record.name}\n")[2].partition("\n## ")[0]
        assert f"Version {record.version}." in section, record.name
        assert [name for name in record.body if f"`{name}`" not in section] == [], record.name
