"""The code of the page about Spark sessions and of the example's notebook, run as Jupyter would; and schedulers."""

from __future__ import annotations

import ast
import asyncio
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from posthouse.cli.pipeline import app
from posthouse.pipeline.connector.source_access import access_with_key
from posthouse.pipeline.lake import Lake
from tests.docs.pages import ROOT, blocks_of
from tests.pipeline.filled_lake import fill_lake
from tests.pipeline.relay import post_office

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = "docs/how-to/pipeline-spark.md"
NOTEBOOK = "examples/spark_notebook/lake.ipynb"


@pytest.mark.xdist_group("spark")
def test_code_of_the_page_about_your_own_session_runs(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with post_office(tmp_path) as post:
        asyncio.run(post.open_topic("builds"))
        store = post.relay.data_dir / "relay.db"
        lake = Lake(tmp_path / "lake")
        fill_lake(lake, store)
        names: dict[str, Any] = {
            "spark": spark,
            "store": str(store),
            "relay": post.relay.url,
            "token": access_with_key(post.relay.url, post.key).token,
            "key_file": str(post.home / "sender.json"),
            "checkpoint": str(tmp_path / "checkpoint"),
            "target": str(tmp_path / "target"),
            "lake_directory": str(lake.path),
        }
        for block in blocks_of(PAGE):
            if block.language == "python":
                exec(compile(block.body, str(block), "exec"), names)  # noqa: S102
        for number, cell in enumerate(notebook_cells()):
            exec(compile(cell, f"{NOTEBOOK}:{number}", "exec"), names)  # noqa: S102
        assert asyncio.run(post.read(2)) == ["job 1 is done", "job 2 is done"]
    read = spark.read.parquet(names["target"])
    assert read.count() > 0
    assert names["remote"].schema == names["records"].schema
    assert names["seqs"].columns == ["seq", "type"]
    shown = capsys.readouterr().out
    assert "mesh" in shown and "|records|" in shown
    assert names["traffic"].columns == ["sender", "destination", "messages", "bytes"]


def notebook_cells() -> list[str]:
    """Return the code of the example's notebook; the cell `parameters` names the lake and the session of its reader."""
    cells = json.loads((ROOT / NOTEBOOK).read_text())["cells"]
    ran = [
        cell for cell in cells if cell["cell_type"] == "code" and "parameters" not in cell["metadata"].get("tags", [])
    ]
    assert ran
    return ["".join(cell["source"]) for cell in ran]


def test_recipes_of_schedulers_start_commands_that_exist() -> None:
    commands: list[list[str]] = []
    for block in blocks_of("docs/how-to/pipeline-schedule.md"):
        if block.language == "text":
            tree = ast.parse(block.body)
            commands += [_words(node) for node in ast.walk(tree) if _words(node)[:2] == ["posthouse", "pipeline"]]
    assert len(commands) == 4
    for _program, *words in commands:
        app.parse_args(words[1:], exit_on_error=False, print_error=False)


def _words(node: ast.AST) -> list[str]:
    """Return the words of a command that is written as one text or as a list of texts; a name in a list is left out."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return shlex.split(node.value) if " " in node.value else []
    if isinstance(node, ast.List):
        return [each.value for each in node.elts if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return []
