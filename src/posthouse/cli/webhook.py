"""`posthouse webhook`: send events of a mesh to URLs and people, and turn requests from outside into messages.

The secret of a webhook, and the URL of an incoming hook, are shown once, by the command that adds it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from posthouse.cli.commands import noun
from posthouse.cli.options import DEFAULT_MESH_OPTIONS, MeshOptions, parse_duration
from posthouse.cli.output import PLAIN, Output, format_moment, table
from posthouse.model.clock import parse_utc, system_clock
from posthouse.model.errors import error
from posthouse.model.limits import SECOND_NS

if TYPE_CHECKING:
    from posthouse.client import Client
    from posthouse.client.webhooks import AddedHook, HookOptions, WebhookOptions
    from posthouse.model.api import AddedWebhook, Webhook, WebhookDetail, WebhookList

_GROUP = Group("Webhook", sort_key=3)
_MANY = Parameter(negative=(), show_default=False, group=_GROUP)
_SWITCH = Parameter(negative=(), show_default=False, group=_GROUP)
#: A webhook, as the first argument.
WebhookId = Annotated[str, Parameter(help="Id of the webhook, as `webhook ls` shows it.")]


def add(
    url: Annotated[str, Parameter(help="URL that gets the requests; mailto:person@example.org for e-mail.")],
    /,
    *,
    preset: Annotated[
        Literal["json", "ntfy", "slack", "email"],
        Parameter(group=_GROUP, help="json sends the event; the others send a line of text to a person."),
    ] = "json",
    filters: Annotated[
        tuple[str, ...], _MANY, Parameter(name="--filter", help="JSON filter, as in `event query`. Repeatable.")
    ] = (),
    record: Annotated[
        tuple[str, ...],
        _MANY,
        Parameter(help="Type of journal records, such as delivery.dead; for admins. Repeatable."),
    ] = (),
    inbox: Annotated[bool, _SWITCH, Parameter(help="Select the messages to your default inbox.")] = False,
    secret: Annotated[
        str | None, Parameter(group=_GROUP, help="Secret to sign with: whsec_ and base64. Default: a new one.")
    ] = None,
    sign: Annotated[
        Literal["hmac", "ed25519"], Parameter(group=_GROUP, help="Signature: a shared secret, or a public key.")
    ] = "hmac",
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    r"""Send committed events of a mesh to a URL, in order, at least once, signed as Standard Webhooks.

    Without --filter, --record and --inbox it sends every event that you may read.

    For example:

        posthouse webhook add https://ci.example.org/hook \
            --filter '{"kinds": [1000], "#t": ["builds"]}'
        posthouse webhook add https://ntfy.sh/my-secret-topic --preset ntfy --inbox
        posthouse webhook add mailto:ops@example.org --preset email \
            --record delivery.dead --record lock.broken --json
    """
    given: WebhookOptions = {"preset": preset, "signing": sign, "inbox": inbox, "record_types": list(record)}
    if filters:
        given["filters"] = [_parse_filter(each) for each in filters]
    if secret is not None:
        given["secret"] = secret

    async def work(client: Client) -> AddedWebhook:
        return await client.webhooks.add(mesh_options.name, url, **given)

    added = mesh_options.run(mesh_options.name, work)
    what = "secret" if sign == "hmac" else "public key"
    output.result(added, f"{added.webhook.id}\n{what}: {added.verification_key}")
    output.note(f"the {what} is shown once: enter it at the receiver")


def _parse_filter(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as fault:
        raise error("usage", text=f"--filter is not JSON: {fault}") from fault
    if not isinstance(value, dict):
        raise error("usage", text="--filter is not a JSON object")
    return value


def ls(*, mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS, output: Output = PLAIN) -> None:
    """List your webhooks of a mesh; admins see those of all members, and the incoming hooks.

    For example:

        posthouse webhook ls
        posthouse webhook ls --mesh team --json
    """

    async def work(client: Client) -> WebhookList:
        return await client.webhooks.all(mesh_options.name)

    found = mesh_options.run(mesh_options.name, work)
    rows = [
        ("out", each.id, each.state, each.preset, each.url, each.parked, each.last_error or "")
        for each in found.webhooks
    ]
    rows += [
        (
            "in",
            each.id,
            "active",
            "github" if each.is_github else "json",
            _target(each.destination, each.to_agent),
            0,
            "",
        )
        for each in found.incoming
    ]
    output.result(found, table(("way", "id", "state", "format", "target", "parked", "last error"), rows))


def _target(destination: str, agent: str) -> str:
    return f"{agent}@{destination}" if agent else destination


def show(webhook_id: WebhookId, /, *, mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS, output: Output = PLAIN) -> None:
    """Show a webhook and the events that its receiver refused.

    For example:

        posthouse webhook show 01J8Z3QW4T5V6X7Y8Z9A0B1C2D
        posthouse webhook show 01J8Z3QW4T5V6X7Y8Z9A0B1C2D --json
    """

    async def work(client: Client) -> WebhookDetail:
        return await client.webhooks.get(webhook_id)

    _show(mesh_options.run(mesh_options.name, work), output)


def _show(found: WebhookDetail, output: Output) -> None:
    webhook = found.webhook
    lines = [f"{name:16} {value}" for name, value in _fields(webhook)]
    lines += [f"parked           seq {each.seq}: {each.reason}" for each in found.parked]
    output.result(found, "\n".join(lines))


def _fields(webhook: Webhook) -> list[tuple[str, object]]:
    return [
        ("id", webhook.id),
        ("url", webhook.url),
        ("mesh", webhook.mesh),
        ("state", webhook.state),
        ("format", f"{webhook.preset}, {webhook.signing}"),
        ("filters", json.dumps(webhook.filters)),
        ("records", ", ".join(webhook.record_types) or "-"),
        ("inbox", "yes" if webhook.inbox else "no"),
        ("cursor", webhook.cursor),
        ("last sent", format_moment(webhook.last_sent_at_ns)),
        ("failing since", format_moment(webhook.failing_since_ns)),
        ("next attempt", format_moment(webhook.next_attempt_at_ns)),
        ("last error", webhook.last_error or "-"),
    ]


def retry(
    webhook_id: WebhookId, /, *, mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS, output: Output = PLAIN
) -> None:
    """Retry failed and parked events now; a suspended webhook continues at its cursor.

    For example:

        posthouse webhook retry 01J8Z3QW4T5V6X7Y8Z9A0B1C2D
        posthouse webhook retry 01J8Z3QW4T5V6X7Y8Z9A0B1C2D --json
    """

    async def work(client: Client) -> WebhookDetail:
        return await client.webhooks.retry(webhook_id)

    _show(mesh_options.run(mesh_options.name, work), output)


def replay(
    webhook_id: WebhookId,
    /,
    *,
    since: Annotated[str, Parameter(group=_GROUP, help="How long ago (15m, 2h, 1d), or a time in UTC.")],
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    r"""Send the events that were committed since a given time again, with the same ids.

    For example:

        posthouse webhook replay 01J8Z3QW4T5V6X7Y8Z9A0B1C2D --since 2h --json
        posthouse webhook replay 01J8Z3QW4T5V6X7Y8Z9A0B1C2D \
            --since 2026-11-16T08:00:00Z
    """
    since_ns = parse_utc(since) if "T" in since else system_clock().wall_ns() - round(parse_duration(since) * SECOND_NS)

    async def work(client: Client) -> WebhookDetail:
        return await client.webhooks.replay(webhook_id, since_ns)

    _show(mesh_options.run(mesh_options.name, work), output)


def rm(webhook_id: WebhookId, /, *, mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS, output: Output = PLAIN) -> None:
    """Remove a webhook or an incoming hook.

    For example:

        posthouse webhook rm 01J8Z3QW4T5V6X7Y8Z9A0B1C2D
        posthouse webhook rm 01J8Z3QW4T5V6X7Y8Z9A0B1C2D --json
    """

    async def work(client: Client) -> None:
        await client.webhooks.remove(webhook_id)

    mesh_options.run(mesh_options.name, work)
    output.result({"id": webhook_id, "removed": True}, f"removed {webhook_id}")


def in_(
    name: Annotated[str, Parameter(help="Member name that its messages are sent under, such as github.")],
    to: Annotated[str, Parameter(help="A member (name or node id), AGENT@MEMBER, or #topic.")],
    /,
    *,
    template: Annotated[
        str, Parameter(group=_GROUP, help="Text with {fields} of the request. Default: its text field, else all of it.")
    ] = "",
    priority: Annotated[
        Literal["now", "next", "low"], Parameter(group=_GROUP, help="Priority of its messages.")
    ] = "next",
    github: Annotated[bool, _SWITCH, Parameter(help="Require GitHub's signature.")] = False,
    max_bytes: Annotated[int, Parameter(group=_GROUP, help="Maximum size of a request in bytes.")] = 65_536,
    rate: Annotated[int, Parameter(group=_GROUP, help="Maximum number of requests per minute.")] = 60,
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    r"""Make a URL whose requests become messages; for admins of the mesh.

    The relay keeps the key of such a hook, so it sees the text of these messages.

    For example:

        posthouse webhook in github '#builds' --github \
            --template '{repository.full_name}: {head_commit.message}'
        posthouse webhook in alerts claude@laptop --priority now \
            --template '{commonAnnotations.summary}'
        posthouse webhook in ci bob --json
    """
    given: HookOptions = {
        "to_agent": to.rpartition("@")[0],
        "template": template,
        "priority": priority,
        "github": github,
        "max_bytes": max_bytes,
        "rate_per_minute": rate,
    }
    host = to.rpartition("@")[2]

    async def work(client: Client) -> AddedHook:
        destination = to if to.startswith("#") else await client.meshes.resolve(host, mesh_options.name)
        return await client.webhooks.add_incoming(mesh_options.name, name, destination, **given)

    added = mesh_options.run(mesh_options.name, work)
    shown = f"{added.hook.id}\n{added.url}"
    output.result(added, shown if added.github_secret is None else f"{shown}\nGitHub secret: {added.github_secret}")
    output.note("the URL is a secret and is shown once: anyone who has it can send messages")


app = noun("webhook", "Send events to URLs and people, and receive requests from other programs.")
app.command(add, name="add")
app.command(ls, name="ls")
app.command(show, name="show")
app.command(retry, name="retry")
app.command(replay, name="replay")
app.command(rm, name="rm")
app.command(in_, name="in")
