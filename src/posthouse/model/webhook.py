"""Webhooks: what one is, how its requests are signed, and what an answer to a request means.

Format and signatures are those of Standard Webhooks (standardwebhooks.com), so that its libraries verify them:

    webhook-id          the same for every attempt of one event; receivers recognize repetitions by it
    webhook-timestamp   Unix seconds of the attempt
    webhook-signature   `v1,` base64 of HMAC-SHA256, or `v1a,` base64 of Ed25519, over id.timestamp.body

A secret is written `whsec_` + base64, a public key `whpk_` + base64. Rules here are pure: the time is an argument. If
you change a format: docs/protocol.md.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import hmac
import secrets
from typing import NamedTuple
from urllib.parse import urlsplit

from posthouse.model.errors import error
from posthouse.model.limits import DAY_S, HOUR_S, SECOND_NS
from posthouse.model.setting import Setting

SECRET_PREFIX, PUBLIC_PREFIX = "whsec_", "whpk_"
SECRET_BYTES = 32  # Standard Webhooks: 24 to 64
_SECRET_MIN, _SECRET_MAX = 24, 64
URL_MAX_BYTES = 2_048
FIRST_BACKOFF_S = 1.0
MAX_BACKOFF_S = float(HOUR_S)
SUSPEND_AFTER_NS = DAY_S * SECOND_NS
REFUSED_TRIES = 5  # of one event that the receiver refuses, before it is parked
_GONE = 410
_RETRIED = frozenset({408, 425, 429})


class WebhookState(enum.StrEnum):
    """Whether a webhook is served."""

    ACTIVE = "active"
    #: it failed for a day; its cursor stays until it is retried
    SUSPENDED = "suspended"
    #: its receiver answered 410
    ENDED = "ended"


class Signing(enum.StrEnum):
    """How requests of a webhook are signed."""

    HMAC = "hmac"
    ED25519 = "ed25519"


class Preset(enum.StrEnum):
    """What a webhook sends."""

    #: the event or record as JSON
    JSON = "json"
    #: a line of text for people
    NTFY = "ntfy"
    SLACK = "slack"
    EMAIL = "email"


class Outcome(enum.Enum):
    """The consequence of one attempt to send an event."""

    SENT = "sent"
    #: the webhook waits, then sends the same event again
    RETRY = "retry"
    #: the receiver refuses this event; after some tries it is parked and the next one is sent
    REFUSED = "refused"
    #: the receiver wants nothing more
    GONE = "gone"


def outcome_of(status: int) -> Outcome:
    """Return the meaning of an HTTP status; a redirect is not followed and counts as a refusal."""
    if 200 <= status < 300:
        return Outcome.SENT
    if status == _GONE:
        return Outcome.GONE
    return Outcome.RETRY if status in _RETRIED or status >= 500 else Outcome.REFUSED


def backoff_s(attempts: int, chance: float) -> float:
    """Return the delay after some failed attempts; `chance` from 0 to 1 spreads webhooks over its second half."""
    longest = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(attempts - 1, 30))
    return longest * (0.5 + 0.5 * chance)


class Signature(NamedTuple):
    """The headers of one attempt."""

    message_id: str
    timestamp: int
    signature: str

    def headers(self) -> dict[str, str]:
        """Return the HTTP headers."""
        return {
            "webhook-id": self.message_id,
            "webhook-timestamp": str(self.timestamp),
            "webhook-signature": self.signature,
        }


def signed_bytes(message_id: str, timestamp: int, body: bytes) -> bytes:
    """Return what a signature covers."""
    return f"{message_id}.{timestamp}.".encode() + body


def sign_hmac(secret: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the signature of scheme v1."""
    digest = hmac.new(secret, signed_bytes(message_id, timestamp, body), hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def new_secret() -> bytes:
    """Return a random secret."""
    return secrets.token_bytes(SECRET_BYTES)


def secret_text(secret: bytes) -> str:
    """Return a secret as people copy it."""
    return SECRET_PREFIX + base64.b64encode(secret).decode()


def public_text(public_key: bytes) -> str:
    """Return a public key as people copy it."""
    return PUBLIC_PREFIX + base64.b64encode(public_key).decode()


def parse_secret(text: str) -> bytes:
    """Return the secret in a string, with or without its prefix, or raise value_invalid."""
    try:
        secret = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if not _SECRET_MIN <= len(secret) <= _SECRET_MAX:
        reason = f"it is not {SECRET_PREFIX} and the base64 of {_SECRET_MIN} to {_SECRET_MAX} bytes"
        raise error("value_invalid", name="secret", reason=reason)
    return secret


def validate_webhook_url(url: str, preset: Preset) -> str:
    """Return the URL unchanged, or raise webhook_url_invalid; addresses are checked when a request is sent."""
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError as fault:
        raise error("webhook_url_invalid", url=url[:200], reason=str(fault)) from fault
    reason = None
    if len(url.encode()) > URL_MAX_BYTES or not url.isprintable() or " " in url:
        reason = f"it has more than {URL_MAX_BYTES} bytes, spaces or control characters"
    elif preset is Preset.EMAIL:
        local, _, domain = parts.path.partition("@")
        if parts.scheme != "mailto" or not local or not domain or parts.query:
            reason = "an e-mail webhook has the form mailto:person@example.org"
    elif parts.scheme not in ("http", "https") or not host:
        reason = "it is not https://HOST/PATH"
    elif parts.username is not None or parts.password is not None or parts.fragment:
        reason = "it has a user name, a password or a fragment"
    if reason is not None:
        raise error("webhook_url_invalid", url=url[:200], reason=reason)
    return url


#: part of the registry in posthouse.model.settings
WEBHOOK_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "relay.webhook_networks",
        str,
        None,
        "Addresses or networks, separated by commas, that webhooks may reach although they are not public.",
    ),
    Setting("relay.webhook_timeout_s", float, 10.0, "Maximum time for the answer to a webhook.", "s", 0.05, 300),
    Setting(
        "relay.webhooks_per_mesh",
        int,
        50,
        "Maximum number of webhooks, and of incoming hooks, in one mesh.",
        "webhooks",
        0,
        10_000,
    ),
    Setting(
        "relay.smtp_url",
        str,
        None,
        "Mail server for webhooks that send e-mail: smtp://USER:PASSWORD@HOST:PORT, or smtps.",
    ),
    Setting("relay.smtp_from", str, None, "Sender address of e-mail from webhooks."),
)
