from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from cyclopts import App

from posthouse.cli.commands import build
from posthouse.version import __version__
from tests.cli.command_line import CommandLine, Outcome


def leaves(app: App, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], App]]:
    """Every command that does something, with its path."""
    for name, child in app.resolved_commands().items():
        if name.startswith("-"):
            continue
        if child.default_command is not None:
            yield (*path, name), child
        yield from leaves(child, (*path, name))


COMMANDS = dict(leaves(build(eager=True)))


def test_every_command_takes_json_and_debug() -> None:
    offenders = [" ".join(path) for path, command in COMMANDS.items() if not {"--json", "--debug"} <= options(command)]
    assert offenders == []


def options(command: App) -> set[str]:
    return {name for argument in command.assemble_argument_collection() for name in argument.names}


def test_every_command_has_help_with_an_example(cli: CommandLine) -> None:
    offenders = [" ".join(path) for path in COMMANDS if not has_example(path, cli(*path, "--help"))]
    assert offenders == []


def has_example(path: tuple[str, ...], outcome: Outcome) -> bool:
    return outcome.exit == 0 and "For example:" in outcome.out and f" posthouse {' '.join(path)}" in outcome.out


def test_help_lists_every_command_with_its_summary(cli: CommandLine) -> None:
    nouns = {path[:depth] for path in COMMANDS for depth in range(len(path))}
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
    assert cli("--version").out == f"{__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_knows_every_noun(shell: str, cli: CommandLine) -> None:
    outcome = cli("completion", shell, "--json")
    assert outcome.value["shell"] == shell
    for name in {path[0] for path in COMMANDS}:
        assert name in outcome.value["script"]


def test_bash_accepts_its_completion_script(cli: CommandLine) -> None:
    script = cli("completion", "bash").out
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


def test_completion_of_an_unknown_shell_is_a_usage_error(cli: CommandLine) -> None:
    assert cli("completion", "cmd").exit == 2
