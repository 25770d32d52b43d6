"""`posthouse relay delete`, `compact` and `size`: remove events from a relay, give space back, and show what uses it.

`delete` and `compact` ask a running relay, as one of its administrators. The relay erases content and keeps ids, so
that the same events cannot be published again. `delete` asks a person before it deletes; a program passes `--yes`.
`compact --offline` and `size` work on the store itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from posthouse.cli.options import DEFAULT_RELAY, RelayOptions, parse_duration
from posthouse.cli.output import PLAIN, Output, table
from posthouse.cli.relay_service import DataDir
from posthouse.cli.relay_store import hold_relay_lock, refuse_server_store, server_url, store_path
from posthouse.model.errors import error

if TYPE_CHECKING:
    from posthouse.client import Client
    from posthouse.model.api import Compacted, Deleted, DeleteRequest
    from posthouse.relay.ops.store_size import StoreSize

_OUT_OF_REACH = (
    "copies outside the relay stay: backups, inboxes of other hosts, and the lake until `posthouse pipeline run` "
    "has erased them there"
)


def delete(
    *,
    filter: Annotated[  # noqa: A002 - the domain's word
        str | None, Parameter(help='A filter as in REQ: `{"kinds": [1], "#t": ["secret"]}`.')
    ] = None,
    author: Annotated[str | None, Parameter(help="Node id of the author.")] = None,
    mesh: Annotated[str | None, Parameter(help="Mesh of the events.")] = None,
    older_than: Annotated[str | None, Parameter(help="Minimum age, counted from the creation time: 90d, 12h.")] = None,
    reason: Annotated[str, Parameter(show_default=False, help="Reason, shown to readers of the events.")] = "",
    dry_run: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Count the events and delete none.")
    ] = False,
    yes: Annotated[bool, Parameter(negative=(), show_default=False, help="Delete without asking.")] = False,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """Delete events of any author that meet every condition; for administrators of the relay.

    Messages that wait in a queue are no longer delivered. Readers of streams get a deletion that the relay signs. An
    event of a coordinate keeps its place: no older version becomes current.

    For example:

        posthouse relay delete --author ed25519:03a1...31b8 --dry-run --json
        posthouse relay delete --mesh team --older-than 90d --yes
        posthouse relay delete --filter '{"#t":["leak"]}' --reason "request 4711"
    """
    request = _request(filter, author, mesh, older_than, reason)
    count = _send(relay_options, request, is_dry_run=True).matched
    if dry_run or not count:
        output.result({"matched": count, "erased": 0, "dry_run": dry_run}, f"{count} events match")
        return
    if not yes and not output.asks(f"Delete {count} events for good?"):
        raise error("usage", text=f"{count} events match; nothing was deleted", hint="Pass --yes to delete them.")
    done = _send(relay_options, request, is_dry_run=False)
    value = {"matched": done.matched, "erased": done.erased, "head": done.head, "dry_run": False}
    output.result(value, f"deleted {done.matched} events, {done.erased} of them had content on the relay")
    output.note(_OUT_OF_REACH)


def _request(
    given: str | None, author: str | None, mesh: str | None, older_than: str | None, reason: str
) -> DeleteRequest:
    from posthouse.model.api import DeleteRequest
    from posthouse.model.clock import system_clock
    from posthouse.model.limits import SECOND_NS

    if all(each is None for each in (given, author, mesh, older_than)):
        raise error("usage", text="give at least one of --filter, --author, --mesh and --older-than")
    before_ns = None
    if older_than is not None:
        before_ns = system_clock().wall_ns() - round(parse_duration(older_than) * SECOND_NS)
    parsed = None if given is None else _parse_filter(given)
    return DeleteRequest(author=author, mesh=mesh, before_ns=before_ns, filter=parsed, reason=reason)


def _parse_filter(text: str) -> dict[str, Any]:
    import msgspec

    from posthouse.model.filters import filter_from_json

    try:
        value = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as fault:
        raise error("usage", text=f"--filter is not a JSON object: {fault}") from fault
    filter_from_json(value)
    return value


def _send(relay_options: RelayOptions, request: DeleteRequest, *, is_dry_run: bool) -> Deleted:
    from msgspec.structs import replace

    async def work(client: Client) -> Deleted:
        return await client.archive.delete(replace(request, dry_run=is_dry_run))

    return relay_options.run(request.mesh, work)


def compact(
    *,
    offline: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Rewrite the store while the relay is stopped.")
    ] = False,
    data_dir: DataDir = None,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """Give free space of the store back to the file system, after events were deleted, swept or archived.

    A running relay does so while it keeps serving. The store of an older version has to be converted once with
    `--offline` while the relay is stopped, which needs as much free space as the store has content.

    For example:

        posthouse relay compact
        posthouse relay compact --offline --data-dir /var/lib/posthouse/relay --json
    """
    if offline:
        before, after = _compact_file(data_dir)
    else:

        async def work(client: Client) -> Compacted:
            return await client.archive.compact()

        done = relay_options.run(None, work)
        before, after = done.before, done.after
    value = {"before": before, "after": after, "released": before - after}
    output.result(value, f"{before:,} bytes before, {after:,} now")


def _compact_file(data_dir: Path | None) -> tuple[int, int]:
    from posthouse.journal.restore import compact_store

    refuse_server_store()
    path = store_path(data_dir)
    with hold_relay_lock(data_dir):
        before = path.stat().st_size
        compact_store(path)
    return before, path.stat().st_size


def size(*, data_dir: DataDir = None, output: Output = PLAIN) -> None:
    """Show what takes the space of a relay's store: its tables, free space, and the content of each mesh.

    Reads the whole store; the relay may run.

    For example:

        posthouse relay size
        posthouse relay size --data-dir /var/lib/posthouse/relay --json
    """
    import msgspec

    found = _measure(data_dir)
    rows = [(each.table, f"{each.bytes:,}", f"{100 * each.bytes / max(found.bytes, 1):.0f} %") for each in found.tables]
    if found.free_bytes:
        rows.append(("(free)", f"{found.free_bytes:,}", f"{100 * found.free_bytes / found.bytes:.0f} %"))
    output.result(msgspec.to_builtins(found), table(("table", "bytes", "share"), rows))
    if not output.json:
        meshes = [(each.mesh, f"{each.events:,}", f"{each.bytes:,}") for each in found.meshes]
        output.result(None, table(("mesh", "events", "bytes of content"), meshes))
    if found.free_bytes:
        way = "compact" if found.is_incremental else "compact --offline"
        output.note(f"`posthouse relay {way}` gives the free space back")


def _measure(data_dir: Path | None) -> StoreSize:
    from posthouse.relay.ops.store_size import measure_file, measure_server

    url = server_url()
    return measure_file(store_path(data_dir)) if url is None else measure_server(url)
