"""What an envelope of an authenticated agent does, by its type.

Types without an entry here are tolerated: heartbeats, handshakes, and whatever a later Pinch will send. Nothing but the
outer fields is looked at; only confirms and blocks have a payload that the relay reads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from posthouse.keys import verify
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import PINCH_MESSAGE_ID_MAX_BYTES
from posthouse.model.node import node_from_key
from posthouse.model.pinch import confirm_bytes, parse_address
from posthouse.relay.pinch.jobs import Confirming, Outcome, Posting
from posthouse.relay.pinch.schema.pinch_pb2 import DeliveryConfirm, Envelope
from posthouse.relay.pinch.wire import BLOCK, CONFIRM, MESSAGE, ROUTED, UNBLOCK

if TYPE_CHECKING:
    from posthouse.relay.pinch.connection import PinchConnection


def take_envelope(connection: PinchConnection, envelope: Envelope, raw: bytes) -> None:
    """Do what an envelope asks for."""
    handler = _HANDLERS.get(envelope.type)
    if handler is not None:
        handler(connection, envelope, raw)


def _post(connection: PinchConnection, envelope: Envelope, raw: bytes) -> None:
    """Queue an envelope for another agent."""
    if envelope.from_address != connection.address:
        connection.refuse(envelope, error("pinch_sender_spoofed"))
    elif not _is_here(envelope.to_address, connection.settings.host):
        connection.refuse(envelope, error("pinch_address_unknown"))
    elif not _is_message_id(envelope.message_id) and (envelope.message_id or envelope.type == MESSAGE):
        connection.refuse(envelope, error("pinch_message_id_invalid"))
    elif connection.pay(envelope):
        tell = partial(connection.settle, envelope)
        ends = (connection.address, envelope.to_address)
        connection.submit(Posting(*ends, envelope.message_id, envelope.type, raw, tell))


def _confirm(connection: PinchConnection, envelope: Envelope, _raw: bytes) -> None:
    """Take a reader's confirm; one that is not its own, or not signed, changes nothing and is not answered."""
    given = envelope.delivery_confirm
    is_own = envelope.from_address == connection.address and _is_message_id(given.message_id)
    if is_own and _is_signed(connection.address, given):
        tell = partial(connection.settle, envelope)
        connection.submit(Confirming(connection.address, envelope.to_address, envelope, tell))
    else:
        connection.pinch.note_outcome(CONFIRM, Outcome.IGNORED)


def _block(connection: PinchConnection, envelope: Envelope, _raw: bytes) -> None:
    """Block an address for the one that is logged in, whoever the payload names as the blocker."""
    _change(connection, envelope, envelope.block_notification.blocked_address)


def _unblock(connection: PinchConnection, envelope: Envelope, _raw: bytes) -> None:
    _change(connection, envelope, envelope.unblock_notification.unblocked_address)


def _change(connection: PinchConnection, envelope: Envelope, other: str) -> None:
    if not _is_here(other, connection.settings.host):
        connection.refuse(envelope, error("pinch_address_unknown"))
    elif connection.pay(envelope):
        connection.pinch.start(_change_block(connection, envelope, other))


async def _change_block(connection: PinchConnection, envelope: Envelope, other: str) -> None:
    blocks = connection.pinch.blocks
    change = blocks.block if envelope.type == BLOCK else blocks.unblock
    try:
        await change(connection.address, other)
    except PosthouseError as refusal:
        connection.refuse(envelope, refusal)


def _is_here(address: str, host: str) -> bool:
    try:
        return parse_address(address).host == host
    except PosthouseError:
        return False


def _is_message_id(message_id: bytes) -> bool:
    if not 0 < len(message_id) <= PINCH_MESSAGE_ID_MAX_BYTES:
        return False
    try:
        return message_id.decode().isprintable()
    except UnicodeDecodeError:
        return False


def _is_signed(address: str, given: DeliveryConfirm) -> bool:
    node = node_from_key(parse_address(address).key)
    try:
        verify(node, confirm_bytes(given.message_id, given.timestamp), given.signature.hex())
    except PosthouseError:
        return False
    return True


_HANDLERS: dict[int, Callable[[PinchConnection, Envelope, bytes], None]] = {
    **dict.fromkeys(ROUTED, _post),
    CONFIRM: _confirm,
    BLOCK: _block,
    UNBLOCK: _unblock,
}
