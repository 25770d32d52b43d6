"""/v1/webhooks: webhooks of a mesh, incoming hooks, and POST /v1/hooks/{token}, which turns a request into a message.

The secret of a webhook, and the token of an incoming hook, are in the answer that adds it and in no other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from posthouse.http.response import HttpResponse, json_response
from posthouse.http.router import Route
from posthouse.model.api import (
    AddedIncomingHook,
    AddedWebhook,
    IncomingHook,
    Webhook,
    WebhookDetail,
    WebhookList,
    WebhookParked,
)
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import TOPIC_MAX_BYTES
from posthouse.model.message import Priority
from posthouse.model.node import DEFAULT_MESH
from posthouse.model.subjects import TOPIC_FORM
from posthouse.model.webhook import URL_MAX_BYTES, Preset, Signing
from posthouse.relay.context import RelayCall
from posthouse.relay.http.schemas import MEMBER_NAME, MESH_NAME, Done
from posthouse.relay.webhooks.incoming import (
    MAX_BYTES,
    MAX_BYTES_ALLOWED,
    RATE_ALLOWED,
    RATE_PER_MINUTE,
    TEMPLATE_MAX_CHARACTERS,
    NewHook,
)
from posthouse.relay.webhooks.managing import MAX_FILTERS, NewWebhook
from posthouse.relay.wire.accept_results import Accepted
from posthouse.relay.wire.webhook_rows import IncomingHookRow, WebhookRow

MeshField = Annotated[str, MESH_NAME]


class WebhookBody(msgspec.Struct, forbid_unknown_fields=True):
    """A webhook to add. Without filters, record_types and inbox it sends every event of the mesh."""

    url: Annotated[str, Meta(description="Where requests go; mailto: for e-mail.", max_length=URL_MAX_BYTES)]
    mesh: MeshField = DEFAULT_MESH
    preset: Preset = Preset.JSON
    signing: Signing = Signing.HMAC
    secret: Annotated[str | None, Meta(description="whsec_ and base64; the relay makes one if it is absent.")] = None
    filters: Annotated[list[dict[str, Any]], Meta(max_length=MAX_FILTERS)] | None = None
    record_types: Annotated[list[str], Meta(max_length=20)] = []
    #: messages to the caller's default inbox
    inbox: bool = False


class WebhookQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The mesh of webhooks."""

    mesh: MeshField = DEFAULT_MESH


class ReplayBody(msgspec.Struct, forbid_unknown_fields=True):
    """From when events are sent again."""

    since_ns: Annotated[int, Meta(ge=0)]


class NewHookBody(msgspec.Struct, forbid_unknown_fields=True):
    """An incoming hook to add."""

    name: Annotated[str, MEMBER_NAME]
    destination: Annotated[
        str,
        Meta(
            description="#topic, or the node id of a member.",
            max_length=1 + TOPIC_MAX_BYTES,
            extra_json_schema={"pattern": f"^(#{TOPIC_FORM}|ed25519:[0-9a-f]{{64}})$"},
        ),
    ]
    mesh: MeshField = DEFAULT_MESH
    to_agent: Annotated[str, Meta(max_length=32)] = ""
    template: Annotated[
        str, Meta(description="Text with {fields} of the request.", max_length=TEMPLATE_MAX_CHARACTERS)
    ] = ""
    priority: Priority = Priority.NEXT
    github: bool = False
    max_bytes: Annotated[int, Meta(ge=1, le=MAX_BYTES_ALLOWED)] = MAX_BYTES
    rate_per_minute: Annotated[int, Meta(ge=1, le=RATE_ALLOWED)] = RATE_PER_MINUTE


class HookAccepted(msgspec.Struct):
    """The message that a request became."""

    id: str
    duplicate: bool


def _shown(row: WebhookRow, parked: int) -> Webhook:
    return Webhook(
        id=row.webhook_id,
        mesh=row.mesh,
        creator=row.creator,
        url=row.url,
        preset=row.preset.value,
        signing=row.signing.value,
        filters=msgspec.json.decode(row.filters),
        record_types=msgspec.json.decode(row.record_types),
        inbox=row.is_inbox,
        state=row.state.value,
        created_at_ns=row.created_at_ns,
        cursor=row.cursor,
        attempts=row.attempts,
        next_attempt_at_ns=row.next_attempt_at_ns or None,
        failing_since_ns=row.failing_since_ns,
        last_error=row.last_error,
        last_sent_at_ns=row.last_sent_at_ns,
        parked=parked,
    )


def _shown_hook(row: IncomingHookRow) -> IncomingHook:
    return IncomingHook(
        id=row.hook_id,
        mesh=row.mesh,
        name=row.name,
        node=row.node,
        destination=row.destination,
        to_agent=row.to_agent,
        template=row.template,
        priority=row.priority,
        is_github=row.github_secret is not None,
        max_bytes=row.max_bytes,
        rate_per_minute=row.rate_per_minute,
        created_at_ns=row.created_at_ns,
    )


async def add_webhook(call: RelayCall) -> HttpResponse:
    """Add a webhook; it sends events that are committed from now on."""
    node, body = call.node, await call.body(WebhookBody)
    new = NewWebhook(
        body.mesh, body.url, body.preset, body.signing, body.secret, body.filters, body.record_types, body.inbox
    )
    added = await call.context.engine.webhooks.add(node, new)
    return json_response(AddedWebhook(_shown(added.row, 0), added.verification_key), 201)


async def list_webhooks(call: RelayCall) -> HttpResponse:
    """List the webhooks and incoming hooks of a mesh: a member its own, an admin all."""
    node, mesh, engine = call.node, call.arguments(WebhookQuery).mesh, call.context.engine
    webhooks = [_shown(row, parked) for row, parked in await engine.webhooks.all(node, mesh)]
    incoming = [_shown_hook(row) for row in await engine.incoming_hooks.all(node, mesh)]
    return json_response(WebhookList(webhooks, incoming))


async def show_webhook(call: RelayCall) -> HttpResponse:
    """Show a webhook and what its receiver refused."""
    return await _detail(call, await call.context.engine.webhooks.find(call.node, call.params["webhook"]))


async def _detail(call: RelayCall, row: WebhookRow) -> HttpResponse:
    parked = await call.context.engine.webhooks.parked(row)
    shown = [WebhookParked(each.seq, each.reason, each.parked_at_ns, each.is_due) for each in parked]
    return json_response(WebhookDetail(_shown(row, len(parked)), shown))


async def remove_webhook(call: RelayCall) -> HttpResponse:
    """Remove a webhook or an incoming hook."""
    node, webhook_id, engine = call.node, call.params["webhook"], call.context.engine
    try:
        await engine.webhooks.remove(node, webhook_id)
    except PosthouseError as unknown:
        if unknown.code != "webhook_unknown":
            raise
        await engine.incoming_hooks.remove(node, webhook_id)
    return json_response(Done())


async def retry_webhook(call: RelayCall) -> HttpResponse:
    """Try again now, including parked events; a suspended webhook continues at its cursor."""
    return await _detail(call, await call.context.engine.webhooks.retry(call.node, call.params["webhook"]))


async def replay_webhook(call: RelayCall) -> HttpResponse:
    """Send again the events that were committed since a given time."""
    node, since_ns = call.node, (await call.body(ReplayBody)).since_ns
    return await _detail(call, await call.context.engine.webhooks.replay(node, call.params["webhook"], since_ns))


async def add_hook(call: RelayCall) -> HttpResponse:
    """Add an incoming hook: a member of the mesh with its own key."""
    node, body = call.node, await call.body(NewHookBody)
    new = NewHook(
        body.mesh,
        body.name,
        body.destination,
        body.to_agent,
        body.template,
        body.priority.value,
        body.github,
        body.max_bytes,
        body.rate_per_minute,
    )
    added = await call.context.engine.incoming_hooks.add(node, new)
    return json_response(
        AddedIncomingHook(_shown_hook(added.row), f"/v1/hooks/{added.token}", added.github_secret), 201
    )


async def receive_hook(call: RelayCall) -> HttpResponse:
    """Turn a request from an outside program into a message."""
    hooks, strangers = call.context.engine.incoming_hooks, call.context.engine.strangers
    strangers.check(call.address)
    try:
        row = await hooks.find(call.params["token"])
    except PosthouseError:
        strangers.charge(call.address)  # guessing tokens costs the address its rate
        raise
    call.limits = replace(call.limits, requires_json=False)
    data = await call.read(row.max_bytes)
    accepted: Accepted = await hooks.receive(row, data, call.request.headers)
    return json_response(HookAccepted(accepted.id, accepted.duplicate), 202)


_PATH = "/v1/webhooks"
_ONE = f"{_PATH}/{{webhook}}"
WEBHOOK_ROUTES = (
    Route("POST", _PATH, add_webhook, "Add a webhook", bodies=(WebhookBody,), responses={201: AddedWebhook}),
    Route("GET", _PATH, list_webhooks, "List webhooks", query=WebhookQuery, responses={200: WebhookList}),
    Route(
        "POST",
        f"{_PATH}/incoming",
        add_hook,
        "Add an incoming hook (admins)",
        bodies=(NewHookBody,),
        responses={201: AddedIncomingHook},
    ),
    Route("GET", _ONE, show_webhook, "Show a webhook", responses={200: WebhookDetail}),
    Route("DELETE", _ONE, remove_webhook, "Remove a webhook or an incoming hook", responses={200: Done}),
    Route("POST", f"{_ONE}/retry", retry_webhook, "Send again what failed", responses={200: WebhookDetail}),
    Route(
        "POST",
        f"{_ONE}/replay",
        replay_webhook,
        "Send again what was committed since a time",
        bodies=(ReplayBody,),
        responses={200: WebhookDetail},
    ),
    Route(
        "POST",
        "/v1/hooks/{token}",
        receive_hook,
        "Send a message through an incoming hook",
        is_public=True,
        responses={202: HookAccepted},
    ),
)
