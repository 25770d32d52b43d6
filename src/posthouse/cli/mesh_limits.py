"""`posthouse mesh limits`, `usage`, `suspend`, `resume`, `delete`: the storage limits of a mesh, and its state.

Admins of a mesh set its own limits; with `--allow`, admins of the relay set upper bounds for them. Each option changes
one limit; the rest stay as they are. `none` removes a limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from posthouse.cli.mesh_invites import Mesh
from posthouse.cli.options import DEFAULT_RELAY, RelayOptions, parse_duration
from posthouse.cli.output import PLAIN, Output, table
from posthouse.model.errors import error

if TYPE_CHECKING:
    from posthouse.client import Client
    from posthouse.model.api import MeshLimitSets, MeshUsage
    from posthouse.model.mesh_limits import AgeLimit, MeshLimits

_NONE = "none"
_Number = Annotated[str | None, Parameter(show_default=False)]


@Parameter(name="*")
@dataclass(frozen=True)
class LimitNumbers:
    """The limits that are one number, each as text or `none`."""

    max_events: Annotated[_Number, Parameter(help="Events with content, or `none`.")] = None
    max_bytes: Annotated[_Number, Parameter(help="Bytes of JSON of these events, or `none`.")] = None
    max_members: Annotated[_Number, Parameter(help="Listed members, or `none`.")] = None
    max_topics: Annotated[_Number, Parameter(help="Topics, or `none`.")] = None
    versions: Annotated[_Number, Parameter(help="Versions kept of each coordinate, or `none`.")] = None
    events_per_s: Annotated[_Number, Parameter(help="Events per second of all members together, or `none`.")] = None
    bytes_per_s: Annotated[_Number, Parameter(help="Bytes per second of all members together, or `none`.")] = None

    def changes(self) -> dict[str, Any]:
        """Return the limits that were given."""
        return {name: _number(name, text) for name, text in vars(self).items() if text is not None}


#: The default of `numbers`.
NO_CHANGE = LimitNumbers()


def limits(
    mesh: Mesh,
    /,
    *,
    numbers: LimitNumbers = NO_CHANGE,
    max_age: Annotated[
        tuple[str, ...],
        Parameter(
            negative=(),
            show_default=False,
            help="How long events are kept: AGE, KIND=AGE or FIRST-LAST=AGE, such as 1000=30d, or `none`. Repeatable.",
        ),
    ] = (),
    on_full: Annotated[
        Literal["refuse", "drop_oldest"] | None,
        Parameter(help="Whether a full mesh refuses new events or drops its oldest ones."),
    ] = None,
    allow: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Set upper bounds for these limits; for admins of the relay."),
    ] = False,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """Show the limits of a mesh; with options, first change some of them.

    Ages count from the creation time of an event. Current versions, and messages that still wait in a queue, stay
    whatever their age.

    For example:

        posthouse mesh limits team
        posthouse mesh limits team --max-events 100000 --on-full drop_oldest
        posthouse mesh limits team --max-age 90d --max-age 1000-1002=30d
        posthouse mesh limits team --allow --max-bytes 1000000000 --json
    """
    changes = numbers.changes()
    if max_age:
        changes["max_age"] = () if max_age == (_NONE,) else tuple([_age(text) for text in max_age])
    if on_full is not None:
        changes["on_full"] = on_full

    async def work(client: Client) -> MeshLimitSets:
        found = await client.meshes.limits(mesh)
        if changes:
            former = found.allowed if allow else found.own
            found = await client.meshes.set_limits(mesh, _changed(former, changes), is_allowed=allow)
        return found

    _show_limits(mesh, relay_options.run(mesh, work), output)


def _show_limits(mesh: str, found: MeshLimitSets, output: Output) -> None:
    sets = (found.limits, found.own, found.allowed)
    names = found.limits.__struct_fields__
    rows = [(name, *(_shown(getattr(each, name)) for each in sets)) for name in names]
    output.result({"mesh": mesh} | _plain(found), table(("limit", "holds", "own", "allowed"), rows))


def _changed(former: MeshLimits, changes: dict[str, Any]) -> MeshLimits:
    from msgspec.structs import replace

    from posthouse.model.mesh_limits import OnFull

    if "on_full" in changes:
        changes = changes | {"on_full": OnFull(changes["on_full"])}
    return replace(former, **changes)


def _number(name: str, text: str) -> int | None:
    if text == _NONE:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise error("usage", text=f"--{name.replace('_', '-')} {text!r} is neither a positive number nor `none`")
    return int(text)


def _age(text: str) -> AgeLimit:
    from posthouse.model.mesh_limits import AgeLimit

    kinds, _, age = text.rpartition("=")
    first, _, last = kinds.partition("-")
    first, last = first or "1", last or first or "39999"
    if not first.isdecimal() or not last.isdecimal():
        raise error("usage", text=f"--max-age {text!r} is not AGE, KIND=AGE or FIRST-LAST=AGE")
    return AgeLimit(int(first), int(last), round(parse_duration(age)))


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"{each.first_kind}-{each.last_kind}={each.max_age_s}s" for each in value) or "-"
    return "-" if value is None else str(value)


def _plain(value: Any) -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(value)
    return plain


def usage(mesh: Mesh, /, *, relay_options: RelayOptions = DEFAULT_RELAY, output: Output = PLAIN) -> None:
    """Show what a mesh has stored, next to its limits.

    For example:

        posthouse mesh usage team
        posthouse mesh usage team --json
    """

    async def work(client: Client) -> MeshUsage:
        return await client.meshes.usage(mesh)

    found = relay_options.run(mesh, work)
    limits = found.limits
    rows = [
        ("events", f"{found.events:,}", _shown(limits.max_events)),
        ("bytes", f"{found.bytes:,}", _shown(limits.max_bytes)),
        ("members", f"{found.members:,}", _shown(limits.max_members)),
        ("topics", f"{found.topics:,}", _shown(limits.max_topics)),
    ]
    output.result(_plain(found), table(("what", "used", "limit"), rows))
    if found.state != "active":
        output.note(f"the mesh is {found.state}")


def suspend(mesh: Mesh, /, *, relay_options: RelayOptions = DEFAULT_RELAY, output: Output = PLAIN) -> None:
    """Suspend a mesh: no node can use it until it is resumed. Nothing is deleted. For admins of the relay.

    For example:

        posthouse mesh suspend team
        posthouse mesh suspend team --json
    """
    _change(mesh, "suspended", lambda client: client.meshes.suspend(mesh), relay_options, output)


def resume(mesh: Mesh, /, *, relay_options: RelayOptions = DEFAULT_RELAY, output: Output = PLAIN) -> None:
    """Resume a suspended mesh: its members can use it again. For admins of the relay.

    For example:

        posthouse mesh resume team
        posthouse mesh resume team --json
    """
    _change(mesh, "active", lambda client: client.meshes.resume(mesh), relay_options, output)


def delete(
    mesh: Mesh,
    /,
    *,
    yes: Annotated[bool, Parameter(negative=(), show_default=False, help="Delete without asking.")] = False,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """Delete a mesh permanently: members, topics and rights at once, its content in the background.

    Only for admins of the relay. The name stays taken. Waiting messages are no longer delivered.

    For example:

        posthouse mesh delete old-project
        posthouse mesh delete old-project --yes --json
    """
    if not yes and not output.asks(f"Delete the mesh {mesh} and everything in it for good?"):
        raise error("usage", text="nothing was deleted", hint="Pass --yes to delete the mesh.")
    _change(mesh, "deleted", lambda client: client.meshes.delete(mesh), relay_options, output)
    output.note("copies outside the relay stay: backups, inboxes of other hosts, and the lake until its next run")


def _change(mesh: str, state: str, ask: Callable[[Client], Any], relay_options: RelayOptions, output: Output) -> None:
    async def work(client: Client) -> None:
        await ask(client)

    relay_options.run(mesh, work)
    output.result({"mesh": mesh, "state": state}, f"mesh {mesh} is {state}")
