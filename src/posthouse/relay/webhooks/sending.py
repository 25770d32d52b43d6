"""Send one request of a webhook: over HTTP to a checked address, or as an e-mail through the operator's server.

Redirects are not followed, proxies of the environment are ignored, and the body of an answer is never read. Nothing is
retried here: an attempt returns what happened, and the dispatcher decides.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from contextlib import suppress
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import aiohttp

from posthouse.http.caller_address import Network
from posthouse.model.clock import Clock
from posthouse.model.limits import HOUR_S, SECOND_NS
from posthouse.model.webhook import Outcome, outcome_of
from posthouse.relay.webhooks.address_guard import AddressGuard, AddressRefused, GuardedResolver
from posthouse.version import __version__

_MAX_RETRY_AFTER_S = float(HOUR_S)
_SMTP_PORT, _SMTPS_PORT = 587, 465


@dataclass(frozen=True, slots=True)
class SendingSettings:
    """Where and how webhooks are sent."""

    #: networks that webhooks may reach although they are not public
    networks: tuple[Network, ...] = ()
    timeout_s: float = 10.0
    #: server for e-mail: smtp://USER:PASSWORD@HOST:PORT, or smtps; None: there is none
    smtp: str | None = None
    #: sender of e-mail
    smtp_from: str | None = None


PUBLIC_ONLY = SendingSettings()


class Attempt(NamedTuple):
    """What became of one request."""

    outcome: Outcome
    #: status or failure, for people
    text: str = ""
    #: the receiver asks to wait so long
    retry_after_s: float = 0.0


class WebhookSender:
    """Sends requests to receivers of webhooks."""

    def __init__(self, settings: SendingSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self.guard = AddressGuard(settings.networks)
        self._sessions: dict[bool, aiohttp.ClientSession] = {}

    @property
    def has_email(self) -> bool:
        """True if the operator has configured a server for e-mail."""
        return self._settings.smtp is not None and self._settings.smtp_from is not None

    async def close(self) -> None:
        """Close every connection."""
        for session in self._sessions.values():
            await session.close()

    async def post(self, url: str, body: bytes, headers: dict[str, str]) -> Attempt:
        """Send a POST and return the outcome that the status of its answer implies."""
        try:
            self._check_literal(url)
            async with self._session(is_plain=url.startswith("http:")).post(
                url, data=body, headers=headers, allow_redirects=False
            ) as response:
                outcome = outcome_of(response.status)
                after_s = self._retry_after_s(response.headers.get("Retry-After"))
                response.close()  # the body is not read
                return Attempt(outcome, f"status {response.status}", after_s)
        except TimeoutError:
            return Attempt(Outcome.RETRY, f"no answer within {self._settings.timeout_s:g} s")
        except aiohttp.ClientConnectorError as failure:
            return Attempt(Outcome.RETRY, f"no connection: {failure.os_error}")
        except (aiohttp.ClientError, OSError, ValueError) as failure:
            return Attempt(Outcome.RETRY, str(failure) or type(failure).__name__)

    async def mail(self, to: str, subject: str, text: str) -> Attempt:
        """Send an e-mail through the operator's server."""
        settings = self._settings
        if settings.smtp is None or settings.smtp_from is None:
            return Attempt(Outcome.RETRY, "the relay has no server for e-mail")
        import smtplib  # most relays send no e-mail

        message = EmailMessage()
        message["From"], message["To"], message["Subject"] = settings.smtp_from, to, subject
        message.set_content(text)
        try:
            await asyncio.to_thread(_send_mail, settings.smtp, message, settings.timeout_s)
        except smtplib.SMTPRecipientsRefused as refused:
            return Attempt(Outcome.REFUSED, f"the server refuses {to}: {refused}")
        except (OSError, smtplib.SMTPException) as failure:
            return Attempt(Outcome.RETRY, str(failure) or type(failure).__name__)
        return Attempt(Outcome.SENT)

    def _check_literal(self, url: str) -> None:
        """Raise AddressRefused for an address in a URL that must not be connected to: it is never resolved."""
        parts = urlsplit(url)
        with suppress(ValueError):
            address = ipaddress.ip_address(parts.hostname or "")
            if not self.guard.may_connect(address, is_plain=parts.scheme == "http"):
                raise AddressRefused(f"a webhook must not connect to {address}")

    def _session(self, *, is_plain: bool) -> aiohttp.ClientSession:
        if is_plain not in self._sessions:
            resolver = GuardedResolver(self.guard, is_plain=is_plain)
            connector = aiohttp.TCPConnector(
                ssl=True if is_plain else ssl.create_default_context(),
                resolver=resolver,
                use_dns_cache=False,
                limit=0,
                limit_per_host=4,
            )
            self._sessions[is_plain] = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=self._settings.timeout_s),
                headers={"User-Agent": f"posthouse/{__version__}"},
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            )
        return self._sessions[is_plain]

    def _retry_after_s(self, value: str | None) -> float:
        """Return the seconds of a Retry-After header, zero without a usable one."""
        if value is None:
            return 0.0
        seconds = 0.0
        if value.isascii() and value.isdigit() and len(value) < 10:
            seconds = float(value)
        else:
            with suppress(ValueError):
                seconds = parsedate_to_datetime(value).timestamp() - self._clock.wall_ns() / SECOND_NS
        return min(max(0.0, seconds), _MAX_RETRY_AFTER_S)


def _send_mail(server: str, message: EmailMessage, timeout_s: float) -> None:
    """Send an e-mail; with TLS unless the server is on this machine and offers none."""
    import smtplib

    parts = urlsplit(server)
    host, context = parts.hostname or "localhost", ssl.create_default_context()
    smtp: smtplib.SMTP
    if parts.scheme == "smtps":
        smtp = smtplib.SMTP_SSL(host, parts.port or _SMTPS_PORT, timeout=timeout_s, context=context)
    else:
        smtp = smtplib.SMTP(host, parts.port or _SMTP_PORT, timeout=timeout_s)
    with smtp:
        if parts.scheme != "smtps":
            smtp.ehlo_or_helo_if_needed()
            if smtp.has_extn("starttls") or host not in ("localhost", "127.0.0.1", "::1"):
                smtp.starttls(context=context)
        if parts.username is not None:
            smtp.login(unquote(parts.username), unquote(parts.password or ""))
        smtp.send_message(message)
