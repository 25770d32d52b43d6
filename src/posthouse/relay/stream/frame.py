"""Bytes of WebSocket frames from relay to client, assembled from parts that are written once.

A server's frames are not masked, so all connections that get the same text get the same bytes: one object, shared by
as many transports as there are readers. Here is the only place that knows how a frame looks (RFC 6455, section 5.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

_TEXT = 0x81  # final, opcode text
_BINARY = 0x82
_CLOSE = 0x88
_PING = 0x89
_PONG = 0x8A
_encode = msgspec.json.Encoder().encode


def text_frame(payload: bytes) -> bytes:
    """Return the frame that carries a text, given as UTF-8."""
    size = len(payload)
    if size < 126:
        return bytes((_TEXT, size)) + payload
    if size < 65_536:
        return bytes((_TEXT, 126)) + size.to_bytes(2, "big") + payload
    return bytes((_TEXT, 127)) + size.to_bytes(8, "big") + payload


def binary_frame(payload: bytes) -> bytes:
    """Return the frame that carries bytes."""
    size = len(payload)
    if size < 126:
        return bytes((_BINARY, size)) + payload
    if size < 65_536:
        return bytes((_BINARY, 126)) + size.to_bytes(2, "big") + payload
    return bytes((_BINARY, 127)) + size.to_bytes(8, "big") + payload


def ping_frame(payload: bytes) -> bytes:
    """Return a ping; the payload has at most 125 bytes and comes back with the pong."""
    return bytes((_PING, len(payload))) + payload


def pong_frame(payload: bytes) -> bytes:
    """Return the answer to a ping."""
    return bytes((_PONG, len(payload))) + payload


def close_frame(code: int, reason: str) -> bytes:
    """Return the frame that ends a connection; the reason has at most 123 bytes."""
    payload = code.to_bytes(2, "big") + reason.encode()[:123]
    return bytes((_CLOSE, len(payload))) + payload


def command_text(*parts: Any) -> bytes:
    """Return one command as JSON text."""
    return _encode(parts)


def event_prefix(sub: str) -> bytes:
    """Return how every EVENT command of a subscription begins."""
    return b'["EVENT",' + _encode(sub) + b","


def event_tail(encoded: bytes, seq: int | None) -> bytes:
    """Return how the EVENT command of an event ends, whoever gets it; `encoded` is the event as JSON."""
    return b"%b,%b]" % (encoded, b"null" if seq is None else b"%d" % seq)


def events_text(prefix: bytes, tails: Sequence[bytes]) -> bytes:
    """Return the text that carries events to a subscription: one command, or one list of commands."""
    if len(tails) == 1:
        return prefix + tails[0]
    return b"[" + prefix + (b"," + prefix).join(tails) + b"]"


def list_text(commands: Sequence[bytes]) -> bytes:
    """Return the text of several commands in one frame; a single one stands alone."""
    return commands[0] if len(commands) == 1 else b"[" + b",".join(commands) + b"]"
