from __future__ import annotations

import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, blocks_of, pages
from tests.docs.session import BOUND_S, Session, commands_of, fits
from tests.docs.unrun import UNRUN
from tests.forked import write_command

#: The first pages of a newcomer are typed with the product as it is installed.
FIRST_PAGES = ("docs/start/three-agents.md", "docs/start/laptop-and-server.md")
#: Pages that still start servers, and kill them, as a test would.
SCAFFOLDED = tuple(
    f"docs/how-to/{name}.md" for name in ("disaster-recovery", "relay-follow", "relay-mirror", "rotate-key")
)
#: This page kills a server without a warning, which a forked one would survive.
KILLING = "docs/how-to/disaster-recovery.md"
RUN = ("console", "python")
#: Languages that are shown and not run.
SHOWN = ("json", "sh", "sql", "text", "toml", "ts", "yaml")


def runnable(page: str) -> list[Block]:
    skipped = UNRUN.get(page, {})
    blocks = [block for block in blocks_of(page) if block.language in RUN]
    return [block for block in blocks if block.body.splitlines()[0] not in skipped]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a `posthouse` that starts quickly, because it is forked."""
    folder = tmp_path_factory.mktemp("programs")
    write_command(folder / "posthouse", "posthouse.cli.main")
    return folder


@pytest.mark.parametrize("page", [page for page in pages() if runnable(page) and page not in FIRST_PAGES])
def test_code_on_the_page_runs_and_prints_what_the_page_says(page: str, tmp_path: Path, programs: Path) -> None:
    installed = Session.programs if page == KILLING else programs
    with closing(Session(tmp_path, installed)) as session:
        for block in runnable(page):
            session.run(block)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The product, installed from its wheel; what it depends on comes from the environment of the tests."""
    folder = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=BOUND_S)
    [wheel] = folder.glob("*.whl")
    install = [sys.executable, "-m", "uv", "pip", "install", "--offline", "--no-deps", "--target"]
    subprocess.run([*install, str(folder / "site"), str(wheel)], check=True, capture_output=True, timeout=BOUND_S)
    return folder / "site"


@pytest.mark.parametrize("page", FIRST_PAGES)
def test_a_newcomer_can_type_the_page_with_the_installed_product(page: str, tmp_path: Path, packages: Path) -> None:
    with closing(Session(tmp_path, packages / "bin", packages)) as session:
        for block in runnable(page):
            session.run(block)


#: Words of a test, not of a person. A how-to may need the shell of its reader: a pipe, a substitution.
SCAFFOLDING = {
    "docs/start/": re.compile(r"(^|[ |;&(])(timeout|sed|kill|sleep|until) |\$[(!]|\.pid|2>"),
    "docs/how-to/": re.compile(r"(^|[ |;&(])(timeout|kill|sleep|until) |\$!|\.pid|> \w+\.log"),
}


@pytest.mark.parametrize("folder", SCAFFOLDING)
def test_pages_show_only_what_a_person_types(folder: str) -> None:
    shown = [page for page in pages() if page.startswith(folder) and page not in SCAFFOLDED]
    blocks = [block for page in shown for block in runnable(page)]
    commands = [f"{block}: {command}" for block in blocks for command, _ in typed(block)]
    assert len(commands) > 30
    assert [command for command in commands if SCAFFOLDING[folder].search(command.partition(": ")[2])] == []


def typed(block: Block) -> list[tuple[str, str]]:
    return commands_of(block.body) if block.language == "console" else []


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


def test_a_session_types_in_terminals_pastes_and_expects_failures(tmp_path: Path) -> None:
    with closing(Session(tmp_path)) as session:

        def typed(body: str, typing: str = "") -> None:
            session.run(Block("page", 1, "console", body, typing))

        typed("$ export NAME=ann; echo id-17\nid-17\n", "terminal a")
        typed("$ echo ${NAME:-nobody}\nnobody\n", "terminal b")
        typed("$ echo $NAME id-...\nann id-17\n", "terminal a")
        typed("$ sh -c 'echo started; exec sleep 60'\nstarted\n", "terminal c; runs")
        typed("$ true\n", "stops c")
        typed("$ ls missing\n...missing...\n", "fails")
        typed("$ echo $HOME\n.../h\n", "host home")
        with pytest.raises(AssertionError, match="exit 0"):
            typed("$ true\n", "fails")
        with pytest.raises(AssertionError, match="no test understands"):
            typed("$ true\n", "quickly")


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
