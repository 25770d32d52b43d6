"""`posthouse version`: what is installed here."""

from __future__ import annotations

import platform

from posthouse.cli.console import PLAIN, Output
from posthouse.version import __version__


def version(*, output: Output = PLAIN) -> None:
    """Show the version of posthouse and of the Python it runs on.

    For example:

        posthouse version
        posthouse version --json
    """
    value = {"posthouse": __version__, "python": platform.python_version()}
    output.answer(value, f"posthouse {__version__} (Python {value['python']})")
