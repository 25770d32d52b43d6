"""Imports of libraries without the parts that posthouse never uses: less memory for a server, a faster start of `send`.

Only the command line does this, before it imports modules that use them: a program that imports posthouse as a library
gets aiohttp and structlog as they are. If you add a TLS connection, give it its own context:
`ssl.create_default_context()`, made at first use. Of aiohttp's server, import the modules that are used, such as
`aiohttp.web_request`: `aiohttp.web` loads a framework, which takes another megabyte.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def import_for_server() -> None:
    """Import the libraries of a relay or a daemon; it saves 7 MB of each process."""
    import_aiohttp()
    # structlog would import rich, and rich pygments, for tracebacks that `posthouse.cli.log` never writes; colorama,
    # and colorama ctypes, for Windows; greenlet for programs that log from greenlets.
    with _hidden("rich"), _hidden("colorama"), _hidden("greenlet"):
        import structlog  # noqa: F401


def import_aiohttp() -> None:
    """Import aiohttp without the certificate authorities of the system, which its default TLS contexts would hold.

    Loading them takes a tenth of the time of a short command. Each TLS connection of posthouse has its own context; a
    connection with aiohttp's default one would trust no server.
    """
    with _environment(SSL_CERT_FILE=os.devnull, SSL_CERT_DIR=os.devnull):
        import aiohttp  # noqa: F401


@contextmanager
def _hidden(library: str) -> Iterator[None]:
    """Make imports of an optional library fail, as if it were not installed."""
    if library in sys.modules:
        yield
        return
    sys.modules[library] = None  # type: ignore[assignment]  # the documented way to make an import fail
    try:
        yield
    finally:
        del sys.modules[library]


@contextmanager
def _environment(**changed: str) -> Iterator[None]:
    """Change environment variables until the block ends."""
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
