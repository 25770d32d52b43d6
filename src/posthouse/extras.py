"""The optional parts of an installation: which are there, and the command that installs another.

The command names what posthouse was installed from, a release file or a checkout, because a package index need not
have it. Programs that reinstall a tool (pipx, uv) would drop the extras that it has, so the command names them too.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Extra -> the library that tells whether it is installed.
LIBRARIES = {
    "fast": "uvloop",
    "ssh": "cryptography",
    "pinch": "google.protobuf",
    "console": "jinja2",
    "postgresql": "psycopg",
    "otel": "opentelemetry.sdk",
    "pipeline": "pyspark",
    "connect": "grpc",
}


def installed_extras() -> list[str]:
    """Return the extras whose library is installed."""
    return [extra for extra, library in LIBRARIES.items() if _is_installed(library)]


def install_hint(extra: str) -> str:
    """Return how to install an extra, with the program that installed posthouse and from the same place."""
    install = _install_command(Path(sys.prefix).parts)
    kept = [] if install == "pip install" else installed_extras()
    extras = ",".join(dict.fromkeys([*kept, extra]))
    source, is_editable = _installed_from()
    if source is not None:
        editable = " --editable" if is_editable else ""
        return f"Run `{install}{editable} {shlex.quote(f'{source}[{extras}]')}`."
    return f"Run `{install} 'posthouse[{extras}]'`, or in a checkout `{install} '.[{extras}]'`."


def _is_installed(library: str) -> bool:
    try:
        return find_spec(library) is not None
    except ModuleNotFoundError:  # the package of a submodule is missing
        return False


def _install_command(environment: Sequence[str]) -> str:
    """Return the command that adds to an environment: pipx and uv keep one for each tool, which pip does not reach."""
    if "pipx" in environment and "venvs" in environment:
        return "pipx install --force"
    return "uv tool install --force" if "uv" in environment and "tools" in environment else "pip install"


def _installed_from() -> tuple[Path | None, bool]:
    """Return the file or checkout that posthouse was installed from, if it is still there, and if it is used in place.

    pip, pipx and uv record it (PEP 610).
    """
    from importlib import metadata  # slow to import

    with suppress(metadata.PackageNotFoundError, ValueError, KeyError, TypeError):
        recorded = json.loads(metadata.distribution("posthouse").read_text("direct_url.json") or "{}")
        url = urlsplit(recorded["url"])
        path = Path(unquote(url.path))
        if url.scheme == "file" and path.exists():
            return path, bool(recorded.get("dir_info", {}).get("editable"))
    return None, False
