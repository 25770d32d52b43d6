"""Rows of webhooks as a store keeps them; plain values without rules."""

from __future__ import annotations

import msgspec

from posthouse.model.webhook import Preset, Signing, WebhookState


class WebhookRow(msgspec.Struct, frozen=True):
    """A webhook: the settings of its creator, and its progress."""

    webhook_id: str
    mesh: str
    #: it gets what this node may read
    creator: str
    url: str
    preset: Preset
    signing: Signing
    #: secret of HMAC, or seed of the Ed25519 key
    secret: bytes
    #: JSON array of filters; empty: no events
    filters: str
    #: JSON array of journal record types
    record_types: str
    #: whether it gets messages to the creator's default inbox
    is_inbox: bool
    created_at_ns: int
    state: WebhookState
    #: everything up to this seq was sent, parked or did not match
    cursor: int
    #: failed attempts to send the next event
    attempts: int = 0
    #: wall time before which it sends nothing
    next_attempt_at_ns: int = 0
    #: since when every attempt has failed; None: the last one succeeded
    failing_since_ns: int | None = None
    #: status or error of the last failed attempt
    last_error: str | None = None
    last_sent_at_ns: int | None = None
    #: whether parked events are to be sent again
    has_due: bool = False


class ParkedEvent(msgspec.Struct, frozen=True):
    """An event that the receiver of a webhook refused."""

    webhook_id: str
    #: its seq in the journal
    seq: int
    reason: str
    parked_at_ns: int
    #: whether it is to be sent again
    is_due: bool = False


class IncomingHookRow(msgspec.Struct, frozen=True):
    """An incoming hook: a member of a mesh whose key the relay keeps."""

    hook_id: str
    mesh: str
    creator: str
    #: node id of the hook
    node: str
    #: the hook's member name
    name: str
    #: seed of the hook's key
    seed: bytes
    #: BLAKE3 of the token in its URL
    token_hash: bytes
    #: #topic, or a node id
    destination: str
    #: agent of the node that messages are for; "" for its default inbox
    to_agent: str
    #: text of a message, with {fields} of the request
    template: str
    priority: str
    #: secret of GitHub's HMAC; None: requests have no signature
    github_secret: bytes | None
    max_bytes: int
    rate_per_minute: int
    created_at_ns: int
