from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import pytest
from cyclopts import App

from posthouse.cli.commands import build
from posthouse.cli.overview import GROUPS
from posthouse.version import __version__
from tests.cli.command_line import CommandLine, Outcome


def leaves(app: App, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], App]]:
    """Every command that does something, with its path; no former names."""
    for name, child in app.resolved_commands().items():
        if name.startswith("-") or not child.show:
            continue
        if child.default_command is not None:
            yield (*path, name), child
        yield from leaves(child, (*path, name))


COMMANDS = dict(leaves(build()))


def test_help_groups_the_commands_and_begins_with_the_first_ones(cli: CommandLine) -> None:
    text = cli("--help").out
    places = [text.index(f"\n{title}\n") for title in (*GROUPS, "Options")]
    assert places == sorted(places)
    first = [text.index(f"\n  {name} ") for name in ("up", "connect", "send", "agent", "relay", "pipeline")]
    assert first == sorted(first)


def test_line_of_each_command_is_the_first_line_of_its_help() -> None:
    described = {name: cleandoc(app.help).splitlines()[0] for name, app in build().resolved_commands().items()}
    shown = {name: line for lines in GROUPS.values() for name, line in lines.items()}
    assert shown == {name: line for name, line in described.items() if not name.startswith("-")}


@pytest.mark.parametrize("columns", [30, 80, 200])
def test_help_fits_the_terminal_and_breaks_lines_between_words(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = cli("--help").out
    assert max(map(len, text.splitlines())) <= min(columns, 120)
    assert " ".join(GROUPS["Mail"]["trace"].split()) in " ".join(text.split())


@pytest.mark.parametrize("words", [("-h",), ("--help", "--json"), ("--json", "--help")])
def test_help_without_a_command_is_the_list_of_commands(cli: CommandLine, words: tuple[str, ...]) -> None:
    assert cli(*words).out == cli("--help").out


def test_help_before_a_command_is_that_of_the_command(cli: CommandLine) -> None:
    assert cli("--help", "send").out == cli("send", "--help").out


def test_every_command_takes_output_json_and_debug() -> None:
    everywhere = {"--output", "--json", "--debug"}
    assert [" ".join(path) for path, command in COMMANDS.items() if not everywhere <= options(command)] == []


def test_former_names_are_not_in_the_help(cli: CommandLine) -> None:
    assert "│ post " not in cli("topic", "--help").out
    assert "│ receive " not in cli("message", "--help").out


def options(command: App) -> set[str]:
    return {name for argument in command.assemble_argument_collection() for name in argument.names}


def test_every_command_has_help_with_an_example(cli: CommandLine) -> None:
    offenders = [" ".join(path) for path in COMMANDS if not has_example(path, cli(*path, "--help"))]
    assert offenders == []


def has_example(path: tuple[str, ...], outcome: Outcome) -> bool:
    return outcome.exit == 0 and "For example:" in outcome.out and f" posthouse {' '.join(path)}" in outcome.out


def test_no_help_has_words_in_angle_brackets_or_between_stars_which_are_not_shown() -> None:
    offenders = []
    for path, command in COMMANDS.items():
        texts = [command.help.partition("For example:")[0]]
        texts += [each.parameter.help or "" for each in command.assemble_argument_collection()]
        unquoted = [re.sub(r"`[^`]*`", "", text) for text in texts]
        offenders += [f"{' '.join(path)}: {text}" for text in unquoted if re.search(r"<[a-zA-Z]|\*[^*]+\*", text)]
    assert offenders == []


def test_help_of_a_noun_lists_every_verb_with_its_summary(cli: CommandLine) -> None:
    nouns = {path[:depth] for path in COMMANDS for depth in range(1, len(path))}
    offenders = []
    for noun in sorted(nouns):
        lines = cli(*noun, "--help").out.splitlines()
        for name in {path[len(noun)] for path in COMMANDS if len(path) > len(noun) and path[: len(noun)] == noun}:
            summary = [line for line in lines if line.startswith(f"│ {name} ") and len(line.strip("│ ").split()) > 2]
            if not summary:
                offenders.append(" ".join((*noun, name)))
    assert offenders == []


def test_no_command_shows_the_help(cli: CommandLine) -> None:
    assert cli().out == cli("--help").out
    assert "new" in cli("keys").out


def test_version_is_printed_as_text_and_as_json(cli: CommandLine) -> None:
    assert cli("version").out.startswith(f"posthouse {__version__} ")
    assert cli("version", "--json").value["posthouse"] == __version__
    assert cli("--version").out.startswith(f"posthouse {__version__} (Python 3.")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_knows_every_noun_and_bash_accepts_its_own(shell: str, cli: CommandLine) -> None:
    outcome = cli("completion", shell, "--json")
    assert outcome.value["shell"] == shell
    for name in {path[0] for path in COMMANDS}:
        assert name in outcome.value["script"]
    if shell == "bash":
        script = outcome.value["script"]
        done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, timeout=30)
        assert (done.returncode, done.stderr) == (0, "")


def test_manual_has_a_page_for_every_command_and_roff_accepts_it(cli: CommandLine, tmp_path: Path) -> None:
    written = cli("man", str(tmp_path), "--json").value
    pages = {page.name: page.read_text() for page in (tmp_path / "man1").iterdir()}
    assert set(pages) == set(written["pages"]) == {"posthouse.1", *(f"posthouse-{path[0]}.1" for path in COMMANDS)}
    assert r"\-\-reply\-to" in pages["posthouse-send.1"]
    assert "POSTHOUSE TOPIC SUBSCRIBE" in pages["posthouse-topic.1"]
    assert "POST " not in pages["posthouse-topic.1"].replace("POSTHOUSE", "")
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed: only the text of the pages was checked")
    for page in (tmp_path / "man1").iterdir():
        done = subprocess.run(
            ["groff", "-man", "-ww", "-z", "-Tutf8", page], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, ""), page


def test_completion_of_an_unknown_shell_is_a_usage_error(cli: CommandLine) -> None:
    assert cli("completion", "cmd").exit == 2
