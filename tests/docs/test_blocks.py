from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.docs.pages import Block, blocks_of, pages
from tests.docs.session import Session, commands_of, fits
from tests.docs.unrun import UNRUN

RUN = ("console", "python")
#: Languages that are shown and not run.
SHOWN = ("json", "sh", "sql", "text", "toml")


def runnable(page: str) -> list[Block]:
    skipped = UNRUN.get(page, {})
    blocks = [block for block in blocks_of(page) if block.language in RUN]
    return [block for block in blocks if block.body.splitlines()[0] not in skipped]


@pytest.mark.parametrize("page", [page for page in pages() if runnable(page)])
def test_code_on_the_page_runs_and_prints_what_the_page_says(page: str, tmp_path: Path) -> None:
    with closing(Session(tmp_path)) as session:
        for block in runnable(page):
            session.run(block)


def test_every_block_names_a_language_that_is_run_or_shown() -> None:
    blocks = [block for page in pages() for block in blocks_of(page)]
    assert [f"{block}: {block.language!r}" for block in blocks if block.language not in RUN + SHOWN] == []


def test_blocks_that_are_not_run_exist_and_have_a_reason() -> None:
    for page, entries in UNRUN.items():
        first_lines = {block.body.splitlines()[0] for block in blocks_of(page) if block.language in RUN}
        for line, reason in entries.items():
            assert line in first_lines, f"{page} has no block that starts with {line!r}"
            assert len(reason) > 10


def test_control_a_page_that_lies_is_found(tmp_path: Path) -> None:
    session = Session(tmp_path)
    with pytest.raises(AssertionError, match="but the page says"):
        session.run(Block("page", 1, "console", "$ echo one\ntwo\n"))
    with pytest.raises(AssertionError, match="exit 1"):
        session.run(Block("page", 1, "console", "$ false | true\n"))
    with pytest.raises(AssertionError, match="exit 1"):
        session.run(Block("page", 1, "python", "assert False\n"))


def test_console_blocks_are_split_into_commands_and_output() -> None:
    body = "$ one \\\n  more\nout\n$ two\n$ three\na\nb\n"
    assert commands_of(body) == [("one \\\n  more", "out\n"), ("two", ""), ("three", "a\nb\n")]


@pytest.mark.parametrize(
    ("printed", "expected", "is_fit"),
    [
        ("a   b\n", "a b\n", True),
        ("node x\nfile y\n", "node ...\nfile ...\n", True),
        ("a\nb\nc\n", "a\n...\nc\n", True),
        ("a\nb\n", "a\n", False),
        ("[x]", "[y]", False),
        ("anything", "", True),
    ],
)
def test_output_fits_what_the_page_says(printed: str, expected: str, is_fit: bool) -> None:
    assert fits(printed, expected) is is_fit
