"""The page of the lake's tables, and the same as sources of a dbt project, from posthouse.pipeline.tables."""

from __future__ import annotations

import json

import pyarrow as pa

from posthouse.pipeline.lake.lake import arrow_schema, declared_names
from posthouse.pipeline.tables.catalog import BY_NAME
from posthouse.pipeline.tables.columns import TABLE_COMMENTS
from posthouse.pipeline.tables.declaration import RefreshMode
from scripts.reference.markdown import code, table

_INTRO = """\
The lake is a directory of Delta tables, by default `~/.posthouse/lake`. Every tool that reads Delta tables reads these
([how](../how-to/pipeline-tables.md)). `silver_*` holds the current state, one row per key; `silver_*_facts` holds the
changes it is folded from. Rows of bronze and of facts that a restore dropped are labelled `lost_by_restore` only when
posthouse reads them; tables of the current state store that column. [sources.yml](sources.yml) declares the same tables
for dbt.
"""
_DBT = """\
# Written by `make docs` from the registries in src; do not edit.
# Sources of a dbt project with the DuckDB adapter and its delta plugin. The environment variable
# POSTHOUSE_PIPELINE_LAKE must hold the directory of the lake.
version: 2

sources:
  - name: posthouse
    description: "The lake of posthouse: messages, deliveries, leases and figures of a fleet of agents."
    meta:
      plugin: delta
    tables:
"""


def render() -> str:
    """Return the body of the page."""
    return "\n".join([_INTRO, *(_section(name) for name in declared_names())])


def _section(name: str) -> str:
    rows = [(code(field.name), _type(field.type), _comment(field)) for field in arrow_schema(name)]
    return f"## {name}\n\n{_about(name)}\n\n{table(('column', 'type', 'meaning'), rows)}"


def _about(name: str) -> str:
    parts = [TABLE_COMMENTS[name]]
    declared = BY_NAME.get(name)
    if declared is not None and declared.refresh is not RefreshMode.APPEND_FACTS:
        parts.append(f"Key: {', '.join(map(code, declared.keys))}.")
    return " ".join(parts)


def render_sources() -> str:
    """Return sources.yml; its strings are JSON, which YAML reads."""
    return _DBT + "".join(_source(name) for name in declared_names())


def _source(name: str) -> str:
    path = json.dumps(f"{{{{ env_var('POSTHOUSE_PIPELINE_LAKE') }}}}/{name}")
    lines = [f"      - name: {name}", f"        description: {json.dumps(TABLE_COMMENTS[name])}"]
    lines += ["        meta:", f"          delta_table_path: {path}", "        columns:"]
    for field in arrow_schema(name):
        lines += [f"          - name: {field.name}", f"            data_type: {_type(field.type)}"]
        lines += [f"            description: {json.dumps(_comment(field))}"]
    return "\n".join(lines) + "\n"


def _type(kind: pa.DataType) -> str:
    """Return the name of a type in SQL."""
    if pa.types.is_list(kind):
        return f"{_type(kind.value_type)}[]"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    names = {pa.string(): "VARCHAR", pa.int64(): "BIGINT", pa.float64(): "DOUBLE", pa.bool_(): "BOOLEAN"}
    return names.get(kind, "TIMESTAMP")


def _comment(field: pa.Field) -> str:
    return str(field.metadata[b"comment"].decode())
