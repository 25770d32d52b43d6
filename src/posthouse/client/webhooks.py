"""Webhooks of a mesh over HTTP: add, list, show, retry, replay, remove; and incoming hooks.

The secret of a webhook and the URL of an incoming hook are in the answer that adds it and in no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack
from urllib.parse import quote

import msgspec

from posthouse.client.transport import Requests
from posthouse.model.api import AddedIncomingHook, AddedWebhook, IncomingHook, WebhookDetail, WebhookList


class WebhookOptions(TypedDict, total=False):
    """Optional arguments of a webhook; without filters, record_types and inbox it sends every event of the mesh."""

    #: json (the default), ntfy, slack or email
    preset: str
    #: hmac (the default) or ed25519
    signing: str
    #: `whsec_` and base64; the relay makes one if it is absent
    secret: str | None
    filters: Sequence[Mapping[str, Any]] | None
    #: types of journal records, such as delivery.dead; for admins of the mesh
    record_types: Sequence[str]
    #: True: messages to this node's default inbox
    inbox: bool


class HookOptions(TypedDict, total=False):
    """Optional arguments of an incoming hook."""

    #: agent of the node that messages are for
    to_agent: str
    #: text with {fields} of the request; by default the member that usually holds the text
    template: str
    #: now, next (the default) or low
    priority: str
    #: True: GitHub's signature is required
    github: bool
    max_bytes: int
    rate_per_minute: int


class AddedHook(msgspec.Struct, frozen=True):
    """An incoming hook, its URL, and the secret to enter at GitHub."""

    hook: IncomingHook
    url: str
    github_secret: str | None


class Webhooks:
    """The webhooks of a relay."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def add(self, mesh: str, url: str, **given: Unpack[WebhookOptions]) -> AddedWebhook:
        """Add a webhook; it sends events that are committed from now on, in commit order, at least once."""
        return await self._requests.post_as(AddedWebhook, _PATH, {"mesh": mesh, "url": url, **given})

    async def all(self, mesh: str) -> WebhookList:
        """Return the webhooks and incoming hooks of a mesh: those of this node, or all of them for an admin."""
        return await self._requests.get_as(WebhookList, _PATH, {"mesh": mesh})

    async def get(self, webhook_id: str) -> WebhookDetail:
        """Return a webhook and what its receiver refused."""
        return await self._requests.get_as(WebhookDetail, _one(webhook_id))

    async def remove(self, webhook_id: str) -> None:
        """Remove a webhook or an incoming hook."""
        await self._requests.delete(_one(webhook_id))

    async def retry(self, webhook_id: str) -> WebhookDetail:
        """Try again now, including parked events; a suspended webhook continues at its cursor."""
        return await self._requests.post_as(WebhookDetail, f"{_one(webhook_id)}/retry", {})

    async def replay(self, webhook_id: str, since_ns: int) -> WebhookDetail:
        """Send again the events that were committed since a given time."""
        return await self._requests.post_as(WebhookDetail, f"{_one(webhook_id)}/replay", {"since_ns": since_ns})

    async def add_incoming(self, mesh: str, name: str, destination: str, **given: Unpack[HookOptions]) -> AddedHook:
        """Add an incoming hook whose requests become messages to a node id or #topic; admins of the mesh may."""
        body = {"mesh": mesh, "name": name, "destination": destination, **given}
        added = await self._requests.post_as(AddedIncomingHook, f"{_PATH}/incoming", body)
        return AddedHook(added.hook, self._requests.origin + added.path, added.github_secret)


_PATH = "/v1/webhooks"


def _one(webhook_id: str) -> str:
    return f"{_PATH}/{quote(webhook_id, safe='')}"
