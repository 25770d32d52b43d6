"""`posthouse completion`: the script that lets a shell complete posthouse commands."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output

Shell = Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell to write for.")]


def completion(shell: Shell, /, *, output: Output = PLAIN) -> None:
    """Print the completion script of a shell.

    For example:

        posthouse completion bash > ~/.local/share/bash-completion/completions/posthouse
        posthouse completion zsh > ~/.zfunc/_posthouse
        posthouse completion fish > ~/.config/fish/completions/posthouse.fish
    """
    from posthouse.cli.commands import build

    script = build(eager=True).generate_completion(shell=shell)
    output.answer({"shell": shell, "script": script}, script)
