"""Receiving: mail from the relay goes into the inbox, and only then it is confirmed.

Whatever happens in between, the relay still has the message and sends it again; the inbox knows it and tells nobody
twice. Mail that cannot be opened is stored with the reason instead of a body, and rejected.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import structlog

from posthouse.client import Delivery, Mailbox
from posthouse.daemon.inbox import Inbox, NewItem
from posthouse.daemon.roster import Roster
from posthouse.model.errors import PosthouseError
from posthouse.model.mesh_budget import encode_mesh_budget

log = structlog.get_logger(__name__)
UNDECRYPTABLE = "undecryptable"


async def take_mail(mailbox: Mailbox, inbox: Inbox, roster: Roster, learn: Callable[[], Awaitable[None]]) -> None:
    """Store mail and confirm it until the mailbox ends; raises what the store or the mailbox raises.

    `learn` brings the roster up to date; it is called when a sender is not in it, such as one that has just joined.
    """
    while deliveries := await mailbox.take():
        if any(roster.name_of(delivery.sender) is None for delivery in deliveries):
            await learn()
        items = [read_item(delivery, inbox.minter.mint(), roster) for delivery in deliveries]
        await inbox.put(items)
        _answer(mailbox, deliveries, items)


def read_item(delivery: Delivery, item_id: str, roster: Roster) -> NewItem:
    """Return what is stored of a delivery."""
    body, reason = _open(delivery)
    message = delivery.message
    return NewItem(
        id=item_id,
        client_message_id=message.client_message_id,
        message_id=delivery.id,
        mesh=delivery.mesh,
        topic=delivery.topic,
        sender=delivery.sender,
        sender_name=roster.name_of(delivery.sender),
        body=body,
        meta=message.meta,
        reply_to_id=message.reply_to,
        priority=message.priority.value,
        budget=None if message.budget is None else encode_mesh_budget(message.budget),
        undecryptable=reason,
    )


def _open(delivery: Delivery) -> tuple[str | None, str | None]:
    try:
        return delivery.body, None
    except PosthouseError as failure:
        log.warning("mail_undecryptable", message_id=delivery.id, sender=delivery.sender, code=failure.code)
        return None, failure.code


def _answer(mailbox: Mailbox, deliveries: Sequence[Delivery], items: Sequence[NewItem]) -> None:
    readable = [delivery for delivery, item in zip(deliveries, items, strict=True) if item.undecryptable is None]
    if readable:
        mailbox.confirm(*readable)
    for delivery, item in zip(deliveries, items, strict=True):
        if item.undecryptable is not None:
            mailbox.reject(delivery, UNDECRYPTABLE)
