"""Changes while a relay runs: certificates whose files change, and settings after SIGHUP.

A certificate is loaded into the TLS context in use, so new connections get it and open ones stay. If files do not load,
for example because the key of a certificate is still missing, nothing changes: the relay logs why, and tries again when
they change. SIGHUP applies the settings that are marked `is_live`; it logs a change of any other setting, which needs a
restart.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from posthouse.model.errors import PosthouseError
from posthouse.model.setting import Value
from posthouse.model.settings import SETTINGS
from posthouse.model.settings_sources import Resolved
from posthouse.relay.listen import Protection, tls_context
from posthouse.relay.server import RelayServer, ServerSettings

log = structlog.get_logger(__name__)
CHECK_CERTIFICATES_S = 10.0

_FileState = tuple[int, int, int]
#: Return the values of all settings, and the server options that they give; raise if one is invalid.
LoadSettings = Callable[[], tuple[Mapping[str, Resolved], ServerSettings]]
_AREAS = ("relay", "log")


class Certificates:
    """The certificate files of a relay, and the TLS context that uses them."""

    def __init__(self, context: ssl.SSLContext, protection: Protection) -> None:
        self._context = context
        self._protection = protection
        self._loaded = self._read_states()

    async def watch(self, every_s: float = CHECK_CERTIFICATES_S) -> None:
        """Check the files regularly."""
        while True:
            await asyncio.sleep(every_s)
            self.check()

    def check(self) -> None:
        """Load the files again if they have changed since they were last tried."""
        states = self._read_states()
        if states == self._loaded:
            return
        self._loaded = states
        cert, key = self._protection.tls_cert, self._protection.tls_key
        assert cert is not None
        try:
            # in a separate context: a failed load would leave the one in use half changed
            tls_context(self._protection)
            self._context.load_cert_chain(cert, key)
        except (PosthouseError, OSError) as failure:  # OSError: the files have changed again since the first try
            log.error("certificate_not_reloaded", cert=str(cert), reason=str(failure))
            return
        log.info("certificate_reloaded", cert=str(cert))

    def _read_states(self) -> list[_FileState | None]:
        return [_state(path) for path in (self._protection.tls_cert, self._protection.tls_key) if path is not None]


def _state(path: Path) -> _FileState | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class Reloader:
    """Applies changed settings to a running relay."""

    def __init__(self, server: RelayServer, load: LoadSettings, certificates: Certificates | None) -> None:
        self._server = server
        self._certificates = certificates
        self._load = load
        self._values = _relevant(load()[0])

    def reload(self) -> None:
        """Read the certificate and the settings again; keep all settings as they are if one is invalid."""
        if self._certificates is not None:
            self._certificates.check()
        try:
            loaded, settings = self._load()
        except PosthouseError as failure:
            log.error("settings_not_reloaded", code=failure.code, reason=str(failure), hint=failure.hint)
            return
        self._server.apply(settings)
        for name, after in _relevant(loaded).items():
            before = self._values[name]
            if after != before and SETTINGS[name].is_live:
                self._values[name] = after
                log.info("setting_changed", setting=name, before=before, after=after)
            elif after != before:
                log.warning("setting_needs_restart", setting=name, running=before, configured=after)
        log.info("settings_reloaded")


def _relevant(values: Mapping[str, Resolved]) -> dict[str, Value]:
    return {name: each.value for name, each in values.items() if each.setting.area in _AREAS}
