"""Add, list, remove, retry and replay webhooks; the first argument is the node that asks.

A member that may write can add its own webhooks; only admins of the mesh can send records of the journal. The creator
and admins of the mesh see and manage a webhook. The secret is shown once, to the node that adds the webhook.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from posthouse.journal.records import RECORD_TYPES
from posthouse.keys import NodeKey
from posthouse.model import webhook
from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.model.filters import filter_from_json
from posthouse.model.ulid import UlidGenerator
from posthouse.relay.accept.mesh_registry import Meshes, Right
from posthouse.relay.store.protocol import RelayStore, Unit
from posthouse.relay.webhooks.selecting import seq_at
from posthouse.relay.webhooks.sending import WebhookSender
from posthouse.relay.wire.webhook_rows import ParkedEvent, WebhookRow

MAX_FILTERS = 10
_PARKED_SHOWN = 100
_SEED_BYTES = 32


class NewWebhook(NamedTuple):
    """A webhook to add."""

    mesh: str
    url: str
    preset: webhook.Preset = webhook.Preset.JSON
    signing: webhook.Signing = webhook.Signing.HMAC
    #: `whsec_` and base64; None: the relay makes one
    secret: str | None = None
    #: None: every event, unless the webhook is about records or the inbox
    filters: Sequence[dict[str, Any]] | None = None
    record_types: Sequence[str] = ()
    is_inbox: bool = False


class AddedWebhook(NamedTuple):
    """A webhook and the key with which its receiver verifies it: the secret, or the public key."""

    row: WebhookRow
    verification_key: str


class Webhooks:
    """The webhooks of a relay."""

    def __init__(
        self, store: RelayStore, meshes: Meshes, sender: WebhookSender, clock: Clock, max_per_mesh: int
    ) -> None:
        self._store = store
        self._meshes = meshes
        self._sender = sender
        self._minter = UlidGenerator(clock)
        self._max_per_mesh = max_per_mesh
        #: callback() after a webhook has changed
        self.on_change: Callable[[], None] = lambda: None

    async def add(self, actor: str, new: NewWebhook) -> AddedWebhook:
        """Add a webhook; it sends events that are committed from now on."""
        self._meshes.require(actor, new.mesh, Right.ADMINISTER if new.record_types else Right.WRITE)
        await self._check(new)
        secret = webhook.new_secret() if new.secret is None else webhook.parse_secret(new.secret)
        if new.signing is webhook.Signing.ED25519:
            secret = secret[:_SEED_BYTES]
        is_event_hook = not new.record_types and not new.is_inbox
        filters = list(new.filters) if new.filters is not None else [{}] if is_event_hook else []
        row = WebhookRow(
            webhook_id=self._minter.mint(),
            mesh=new.mesh,
            creator=actor,
            url=new.url,
            preset=new.preset,
            signing=new.signing,
            secret=secret,
            filters=msgspec.json.encode(filters).decode(),
            record_types=msgspec.json.encode(list(new.record_types)).decode(),
            is_inbox=new.is_inbox,
            created_at_ns=0,
            state=webhook.WebhookState.ACTIVE,
            cursor=0,
        )

        def write(unit: Unit) -> WebhookRow:
            body = {"url_host": _host(new.url), "preset": new.preset.value}
            seq = unit.append("webhook.added", mesh=new.mesh, actor=actor, ref=row.webhook_id, body=body)
            added = msgspec.structs.replace(row, created_at_ns=unit.now_ns, cursor=seq)
            unit.webhooks.save(added)
            return added

        added = await self._store.submit(write)
        self.on_change()
        return AddedWebhook(added, _verification_key(added))

    async def _check(self, new: NewWebhook) -> None:
        """Raise an error if a webhook cannot be added."""
        webhook.validate_webhook_url(new.url, new.preset)
        for each in new.filters or ():
            if filter_from_json(each).mesh not in (None, new.mesh):
                raise error("value_invalid", name="filters", reason="a filter names a mesh other than the webhook's")
        if len(new.filters or ()) > MAX_FILTERS:
            raise error("value_invalid", name="filters", reason=f"there are more than {MAX_FILTERS}")
        for name in new.record_types:
            if name not in RECORD_TYPES:
                raise error("value_invalid", name="record_types", reason=f"the journal has no records {name!r}")
        count = sum(row.mesh == new.mesh for row in await self._store.webhooks.all())
        if count >= self._max_per_mesh:
            raise error("mesh_row_limit", mesh=new.mesh, count=count, what="webhooks")
        if new.preset is not webhook.Preset.EMAIL:
            await self._sender.guard.check_url(new.url)
        elif not self._sender.has_email:
            raise error("webhook_email_unavailable")

    async def all(self, actor: str, mesh: str) -> list[tuple[WebhookRow, int]]:
        """Return the webhooks of a mesh that a node may see, each with its number of parked events."""
        is_admin = Right.ADMINISTER in self._meshes.require(actor, mesh, Right.READ).rights(actor)
        counts = await self._store.webhooks.parked_counts()
        rows = [row for row in await self._store.webhooks.all() if row.mesh == mesh]
        return [(row, counts.get(row.webhook_id, 0)) for row in rows if is_admin or row.creator == actor]

    async def find(self, actor: str, webhook_id: str) -> WebhookRow:
        """Return a webhook that a node may manage, or raise webhook_unknown."""
        row = await self._store.webhooks.find(webhook_id)
        if row is None or (row.creator != actor and Right.ADMINISTER not in self._meshes.rights(actor, row.mesh)):
            raise error("webhook_unknown", id=webhook_id[:80])
        return row

    async def parked(self, row: WebhookRow) -> Sequence[ParkedEvent]:
        """Return the oldest parked events of a webhook."""
        return await self._store.webhooks.parked(row.webhook_id, _PARKED_SHOWN)

    async def remove(self, actor: str, webhook_id: str) -> None:
        """Remove a webhook with its parked events."""
        row = await self.find(actor, webhook_id)

        def write(unit: Unit) -> None:
            if unit.webhooks.find(webhook_id) is not None:
                unit.webhooks.remove(webhook_id)
                unit.append("webhook.removed", mesh=row.mesh, actor=actor, ref=webhook_id)

        await self._store.submit(write)
        self.on_change()

    async def retry(self, actor: str, webhook_id: str) -> WebhookRow:
        """Send again now: parked events first; a suspended or ended webhook then continues at its cursor."""
        row = await self.find(actor, webhook_id)
        return await self._move(actor, row, "webhook.resumed", None, await self.parked(row))

    async def replay(self, actor: str, webhook_id: str, since_ns: int) -> WebhookRow:
        """Send again the events that were committed since a given time, as far as the relay still has them."""
        row = await self.find(actor, webhook_id)
        return await self._move(actor, row, "webhook.replayed", await seq_at(self._store, since_ns), ())

    async def _move(
        self, actor: str, row: WebhookRow, record: str, cursor: int | None, due: Sequence[ParkedEvent]
    ) -> WebhookRow:
        """Activate a webhook, with its cursor moved back if one is given, and parked events due."""

        def write(unit: Unit) -> WebhookRow:
            now = unit.webhooks.find(row.webhook_id)
            if now is None:
                raise error("webhook_unknown", id=row.webhook_id)
            moved = msgspec.structs.replace(
                now,
                state=webhook.WebhookState.ACTIVE,
                cursor=now.cursor if cursor is None else min(now.cursor, cursor),
                attempts=0,
                next_attempt_at_ns=0,
                failing_since_ns=None,
                has_due=bool(due) or now.has_due,
            )
            unit.webhooks.save(moved)
            for each in due:
                unit.webhooks.park(msgspec.structs.replace(each, is_due=True))
            unit.append(record, mesh=row.mesh, actor=actor, ref=row.webhook_id, body={"cursor": moved.cursor})
            return moved

        moved = await self._store.submit(write)
        self.on_change()
        return moved


def _verification_key(row: WebhookRow) -> str:
    return (
        webhook.secret_text(row.secret)
        if row.signing is webhook.Signing.HMAC
        else webhook.public_text(NodeKey(row.secret).public)
    )


def _host(url: str) -> str:
    """Return the host of a URL for the journal: paths of webhooks are secrets."""
    parts = urlsplit(url)
    return parts.hostname or parts.path.partition("@")[2]
