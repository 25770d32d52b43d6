"""Pinch envelopes: decoding those of agents, and encoding those of the relay itself.

The relay reads only the outer fields. It forwards an envelope as the bytes that it received, unknown fields included,
with one exception: in a confirm it sets was_stored, which the reader's signature does not cover.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from posthouse.relay.pinch.schema.pinch_pb2 import (
    AuthChallenge,
    AuthResult,
    Envelope,
    MessageType,
    QueueFull,
    QueueStatus,
    RateLimited,
)

VERSION = 1
MESSAGE = MessageType.MESSAGE_TYPE_MESSAGE
CONFIRM = MessageType.MESSAGE_TYPE_DELIVERY_CONFIRM
AUTH_RESPONSE = MessageType.MESSAGE_TYPE_AUTH_RESPONSE
BLOCK = MessageType.MESSAGE_TYPE_BLOCK_NOTIFICATION
UNBLOCK = MessageType.MESSAGE_TYPE_UNBLOCK_NOTIFICATION
#: types that only the relay sends, or that belong to the login; every other type goes from agent to agent
NOT_ROUTED = frozenset(
    {
        MessageType.MESSAGE_TYPE_UNSPECIFIED,
        MessageType.MESSAGE_TYPE_AUTH_CHALLENGE,
        AUTH_RESPONSE,
        MessageType.MESSAGE_TYPE_AUTH_RESULT,
        MessageType.MESSAGE_TYPE_QUEUE_STATUS,
        MessageType.MESSAGE_TYPE_QUEUE_FULL,
        MessageType.MESSAGE_TYPE_RATE_LIMITED,
    }
)


def decode_envelope(data: bytes) -> Envelope | None:
    """Return the envelope in a frame, or None if it cannot be parsed."""
    try:
        return Envelope.FromString(data)
    except DecodeError:
        return None


def type_name(message_type: int) -> str:
    """Return the name of a type for metrics."""
    try:
        return MessageType.Name(message_type).removeprefix("MESSAGE_TYPE_").lower()
    except ValueError:
        return "unknown"


def auth_challenge(nonce: bytes, issued_at_ms: int, expires_at_ms: int, host: str) -> bytes:
    """Return the first envelope of a connection."""
    given = AuthChallenge(
        version=VERSION, nonce=nonce, issued_at_ms=issued_at_ms, expires_at_ms=expires_at_ms, relay_host=host
    )
    type_ = MessageType.MESSAGE_TYPE_AUTH_CHALLENGE
    return Envelope(version=VERSION, type=type_, timestamp=issued_at_ms, auth_challenge=given).SerializeToString()


def auth_result(now_ms: int, address: str, refusal: str = "") -> bytes:
    """Return the answer to a login: the address, or the reason of a refusal."""
    result = AuthResult(success=not refusal, error_message=refusal, assigned_address="" if refusal else address)
    type_ = MessageType.MESSAGE_TYPE_AUTH_RESULT
    return Envelope(
        version=VERSION, to_address=address, type=type_, timestamp=now_ms, auth_result=result
    ).SerializeToString()


def queue_status(now_ms: int, address: str, pending: int) -> bytes:
    """Return the number of envelopes that wait for an agent that has logged in."""
    type_ = MessageType.MESSAGE_TYPE_QUEUE_STATUS
    status = QueueStatus(pending_count=pending)
    return Envelope(
        version=VERSION, to_address=address, type=type_, timestamp=now_ms, queue_status=status
    ).SerializeToString()


def queue_full(now_ms: int, address: str, message_id: bytes, recipient: str, reason: str) -> bytes:
    """Return a permanent refusal of an envelope; the protocol has no other type for one."""
    return Envelope(
        version=VERSION,
        to_address=address,
        type=MessageType.MESSAGE_TYPE_QUEUE_FULL,
        message_id=message_id,
        timestamp=now_ms,
        queue_full=QueueFull(recipient_address=recipient, reason=reason),
    ).SerializeToString()


def rate_limited(now_ms: int, address: str, message_id: bytes, retry_after_ms: int, reason: str) -> bytes:
    """Return a temporary refusal of an envelope, with the time after which to send it again."""
    return Envelope(
        version=VERSION,
        to_address=address,
        type=MessageType.MESSAGE_TYPE_RATE_LIMITED,
        message_id=message_id,
        timestamp=now_ms,
        rate_limited=RateLimited(retry_after_ms=retry_after_ms, reason=reason),
    ).SerializeToString()


def forwarded_confirm(envelope: Envelope, was_stored: bool) -> bytes:
    """Return a confirm as the sender of the message gets it."""
    copied = Envelope()
    copied.CopyFrom(envelope)
    copied.delivery_confirm.was_stored = was_stored
    return copied.SerializeToString()
