from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from cyclopts import App

from posthouse.cli.commands import build
from posthouse.version import __version__
from tests.cli.command_line import CommandLine


def leaves(app: App, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], App]]:
    """Every command that does something, with its path."""
    for name, child in app.resolved_commands().items():
        if name.startswith("-"):
            continue
        if child.default_command is not None:
            yield (*path, name), child
        yield from leaves(child, (*path, name))


COMMANDS = dict(leaves(build(eager=True)))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_takes_json_and_debug(path: tuple[str, ...]) -> None:
    names = {name for argument in COMMANDS[path].assemble_argument_collection() for name in argument.names}
    assert {"--json", "--debug"} <= names


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(path: tuple[str, ...], cli: CommandLine) -> None:
    outcome = cli(*path, "--help")
    assert outcome.exit == 0
    assert "For example:" in outcome.out
    assert f" posthouse {' '.join(path)}" in outcome.out


def test_help_lists_every_command_with_its_summary(cli: CommandLine) -> None:
    outcome = cli("--help")
    assert outcome.exit == 0
    for name in {path[0] for path in COMMANDS}:
        line = next(line for line in outcome.out.splitlines() if line.startswith(f"│ {name} "))
        assert len(line.strip("│ ").split()) > 3, line


def test_no_command_shows_the_help(cli: CommandLine) -> None:
    assert cli().out == cli("--help").out
    assert "new" in cli("keys").out


def test_version_tells_the_version_to_people_and_programs(cli: CommandLine) -> None:
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
