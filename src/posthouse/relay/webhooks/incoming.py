"""Incoming hooks: a request from outside becomes a message to an agent or a topic.

Each hook has a URL with a secret token and is a member of its mesh, with a name and a key that the relay makes and
keeps: the relay writes the message, so the relay sees its text. The text comes from a template over the fields of the
request. The sender's delivery id becomes the client_message_id, so a repeated request is one message. With a secret of
GitHub the signature of each request is verified.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import msgspec
from blake3 import blake3

from posthouse.client.messages.sender import Composer, MessageOptions
from posthouse.client.trust.signing import Signer
from posthouse.keys import NodeKey, new_token, same_token
from posthouse.model.address import validate_agent_name
from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.model.event import encode_event
from posthouse.model.limits import BODY_MAX_BYTES, CLIENT_MESSAGE_ID_MAX_BYTES, KIB, MINUTE_S
from posthouse.model.message import Priority
from posthouse.model.node import Role, is_node_id
from posthouse.model.rate import Bucket, Rate, full_bucket, take
from posthouse.model.strict_json import parse_json
from posthouse.model.subjects import validate_topic
from posthouse.model.ulid import UlidGenerator
from posthouse.relay.accept.mesh_registry import Meshes, Right
from posthouse.relay.accept.rates import RateShare
from posthouse.relay.meshes.administration import Administration
from posthouse.relay.store.protocol import RelayStore, Unit
from posthouse.relay.wire.accept_results import Accepted, Answer, Declined
from posthouse.relay.wire.webhook_rows import IncomingHookRow

MAX_BYTES, MAX_BYTES_ALLOWED = 64 * KIB, 256 * KIB
RATE_PER_MINUTE, RATE_ALLOWED = 60, 6_000
TEMPLATE_MAX_CHARACTERS = 4_000
TOPIC_MARK = "#"
#: headers that name a delivery, in order of preference: GitHub, Standard Webhooks, GitLab, and the common one
DELIVERY_HEADERS = ("X-GitHub-Delivery", "webhook-id", "X-Gitlab-Event-UUID", "Idempotency-Key")
GITHUB_SIGNATURE = "X-Hub-Signature-256"
_FIELD = re.compile(r"\{([^{}]{1,200})\}")
_HEADER = "header."
#: members that usually hold the text, for hooks without a template
_TEXTS = ("text", "message", "content", "body", "title")


class NewHook(NamedTuple):
    """An incoming hook to add."""

    mesh: str
    name: str
    #: #topic, or a node id
    destination: str
    to_agent: str = ""
    template: str = ""
    priority: str = Priority.NEXT.value
    is_github: bool = False
    max_bytes: int = MAX_BYTES
    rate_per_minute: int = RATE_PER_MINUTE


class AddedHook(NamedTuple):
    """A hook, the token in its URL, and the secret for GitHub; both are shown once."""

    row: IncomingHookRow
    token: str
    github_secret: str | None


def token_hash(token: str) -> bytes:
    """Return the form in which the store keeps a token."""
    return blake3(token.encode()).digest()


def render(template: str, body: Any, headers: Mapping[str, str]) -> str:
    """Return the text of a message: the template with {fields} of the body and {header.NAME} filled in.

    A field is a path such as repository.full_name or alerts.0.labels; a missing one is empty. Without a template it is
    the member that usually holds the text, else the whole body as JSON.
    """
    if not template:
        texts = [body[name] for name in _TEXTS if isinstance(body, dict) and isinstance(body.get(name), str)]
        return str(texts[0]) if texts else _shown(body)

    def fill(found: re.Match[str]) -> str:
        path = found[1]
        if path.startswith(_HEADER):
            return headers.get(path.removeprefix(_HEADER), "")
        return _shown(_look_up(body, path))

    return _FIELD.sub(fill, template)


def _look_up(value: Any, path: str) -> Any:
    for name in path.split("."):
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isascii() and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def check_github_signature(secret: bytes, body: bytes, signature: str | None) -> None:
    """Raise hook_signature_invalid unless GitHub signed the body."""
    expected = "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()
    if signature is None or not same_token(signature, expected):
        raise error("hook_signature_invalid", header=GITHUB_SIGNATURE)


class IncomingHooks:
    """The incoming hooks of a relay."""

    def __init__(
        self,
        store: RelayStore,
        meshes: Meshes,
        administration: Administration,
        accept: Callable[[bytes], Awaitable[Answer]],
        clock: Clock,
        max_per_mesh: int,
        rate_share: RateShare,
    ) -> None:
        self._store = store
        self._meshes = meshes
        self._administration = administration
        self._accept = accept
        self._clock = clock
        self._minter = UlidGenerator(clock)
        self._rate_share = rate_share
        self._max_per_mesh = max_per_mesh
        self._buckets: dict[str, Bucket] = {}

    async def add(self, actor: str, new: NewHook) -> AddedHook:
        """Add a hook and make it a member of the mesh; admins of the mesh may."""
        self._meshes.require(actor, new.mesh, Right.ADMINISTER)
        await self._check(new)
        key, token = NodeKey.generate(), new_token()
        github_secret = new_token() if new.is_github else None
        await self._administration.save_member(actor, new.mesh, key.node, new.name, Role.MEMBER)
        row = IncomingHookRow(
            hook_id=self._minter.mint(),
            mesh=new.mesh,
            creator=actor,
            node=key.node,
            name=new.name,
            seed=key.reveal_seed(),
            token_hash=token_hash(token),
            destination=new.destination,
            to_agent=new.to_agent,
            template=new.template,
            priority=new.priority,
            github_secret=None if github_secret is None else github_secret.encode(),
            max_bytes=new.max_bytes,
            rate_per_minute=new.rate_per_minute,
            created_at_ns=self._clock.wall_ns(),
        )

        def write(unit: Unit) -> None:
            unit.webhooks.save_incoming(row)
            body = {"node": key.node, "name": new.name, "destination": new.destination}
            unit.append("webhook.in_added", mesh=new.mesh, actor=actor, ref=row.hook_id, body=body)

        await self._store.submit(write)
        return AddedHook(row, token, github_secret)

    async def _check(self, new: NewHook) -> None:
        """Raise an error if a hook cannot be added."""
        mesh = self._meshes.find(new.mesh)
        if new.destination.startswith(TOPIC_MARK):
            topic = validate_topic(new.destination.removeprefix(TOPIC_MARK))
            if topic not in mesh.topics:
                raise error("topic_unknown", topic=topic, mesh=new.mesh)
            if new.to_agent:
                raise error("value_invalid", name="to_agent", reason="a message to a topic cannot be for one agent")
        elif not is_node_id(new.destination):
            raise error("value_invalid", name="destination", reason="it is neither #topic nor a node id")
        elif new.to_agent:
            validate_agent_name(new.to_agent)
        if len(new.template) > TEMPLATE_MAX_CHARACTERS:
            raise error(
                "value_invalid", name="template", reason=f"it has more than {TEMPLATE_MAX_CHARACTERS} characters"
            )
        count = sum(row.mesh == new.mesh for row in await self._store.webhooks.incoming())
        if count >= self._max_per_mesh:
            raise error("mesh_row_limit", mesh=new.mesh, count=count, what="incoming hooks")

    async def all(self, actor: str, mesh: str) -> list[IncomingHookRow]:
        """Return the hooks of a mesh; admins see all of them, other members none."""
        if Right.ADMINISTER not in self._meshes.require(actor, mesh, Right.READ).rights(actor):
            return []
        return [row for row in await self._store.webhooks.incoming() if row.mesh == mesh]

    async def remove(self, actor: str, hook_id: str) -> None:
        """Remove a hook and its membership, or raise webhook_unknown."""
        rows = await self._store.webhooks.incoming()
        row = next((each for each in rows if each.hook_id == hook_id), None)
        if row is None or Right.ADMINISTER not in self._meshes.rights(actor, row.mesh):
            raise error("webhook_unknown", id=hook_id[:80])

        def write(unit: Unit) -> None:
            unit.webhooks.remove_incoming(hook_id)
            unit.append("webhook.in_removed", mesh=row.mesh, actor=actor, ref=hook_id)

        await self._store.submit(write)
        if row.node in self._meshes.find(row.mesh).members:
            await self._administration.remove_member(actor, row.mesh, row.node)

    async def find(self, token: str) -> IncomingHookRow:
        """Return the hook of a token, or raise hook_unknown."""
        row = await self._store.webhooks.find_incoming(token_hash(token))
        if row is None:
            raise error("hook_unknown")
        return row

    async def receive(self, row: IncomingHookRow, body: bytes, headers: Mapping[str, str]) -> Accepted:
        """Turn a request into a message and return the relay's answer to it."""
        self._charge(row)
        if row.github_secret is not None:
            check_github_signature(row.github_secret, body, headers.get(GITHUB_SIGNATURE))
        value = parse_json(body) if _is_json(headers, body) else {"text": body.decode("utf-8", "replace")}
        text = _cut(render(row.template, value, headers))
        answer = await self._accept(encode_event(self._compose(row, text or "(no text)", headers)))
        if isinstance(answer, Declined):
            raise answer.error
        return answer

    def _compose(self, row: IncomingHookRow, text: str, headers: Mapping[str, str]) -> Any:
        delivery = next((headers[name] for name in DELIVERY_HEADERS if headers.get(name)), None)
        options: MessageOptions = {"to_agent": row.to_agent, "priority": row.priority, "client_message_id": None}
        if delivery is not None:
            options["client_message_id"] = "".join(filter(str.isprintable, delivery))[
                : CLIENT_MESSAGE_ID_MAX_BYTES // 4
            ]
        composer = Composer(Signer(NodeKey(row.seed), self._clock), self._minter)
        return composer.seal_and_sign(composer.request(row.destination, text, row.mesh, options))

    def _charge(self, row: IncomingHookRow) -> None:
        """Take one request from the rate of a hook, or raise hook_rate_exceeded."""
        whole_rate = Rate(max(1, row.rate_per_minute // MINUTE_S), row.rate_per_minute)
        rate, now_ns = self._rate_share.of(whole_rate), self._clock.boot_ns()
        bucket = self._buckets.get(row.hook_id) or full_bucket(rate, now_ns)
        self._buckets[row.hook_id], wait_ns = take(bucket, rate, now_ns)
        if wait_ns:
            raise error("hook_rate_exceeded", retry_after_s=wait_ns / 1e9)


def _is_json(headers: Mapping[str, str], body: bytes) -> bool:
    media_type = headers.get("Content-Type", "application/json").partition(";")[0].strip().lower()
    return bool(body) and (media_type == "application/json" or media_type.endswith("+json"))


def _cut(text: str) -> str:
    """Return a text that fits into a message."""
    data = text.encode()
    return text if len(data) <= BODY_MAX_BYTES else data[: BODY_MAX_BYTES - 4].decode("utf-8", "ignore") + " ..."
