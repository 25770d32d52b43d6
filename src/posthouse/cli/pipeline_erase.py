"""`posthouse pipeline erase`: remove content permanently, from the stores first, then from every table of the lake.

A relay deletes its own events and records the deletion in its journal; for a bus, this process erases the records in
its file. The run that follows copies the records of the erasures and erases the same rows from the lake, together with
rows that the stores no longer hold. If a store refuses, the lake is not touched; the command can be repeated.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.options import load_key
from posthouse.cli.output import PLAIN, Output, table
from posthouse.cli.pipeline_options import DEFAULT_PIPELINE, PipelineOptions, open_sources, parse_moment
from posthouse.cli.pipeline_run import run_once
from posthouse.model.clock import system_clock
from posthouse.model.errors import error

if TYPE_CHECKING:
    from posthouse.client import Client
    from posthouse.journal.erase import ErasureRequest
    from posthouse.pipeline.connector.source_access import Address


def erase(
    *,
    node: Annotated[str | None, Parameter(help="Content written by this node; on a bus, by this subject.")] = None,
    mesh: Annotated[str | None, Parameter(help="Content written in this mesh.")] = None,
    event: Annotated[str | None, Parameter(help="The event or bus message with this id.")] = None,
    before: Annotated[
        str | None, Parameter(help="Content from before this UTC day, as 2026-11-01, or older than this: 365d.")
    ] = None,
    reason: Annotated[str, Parameter(help="Reason for the signed record of the erasure; others can read it.")] = "",
    lake_only: Annotated[
        bool, Parameter(negative=(), help="Erase only from the lake; the stores may still have the content.")
    ] = False,
    dry_run: Annotated[bool, Parameter(negative=(), help="Only count the rows to erase.")] = False,
    pipeline_options: PipelineOptions = DEFAULT_PIPELINE,
    output: Output = PLAIN,
) -> None:
    r"""Erase content permanently: from the stores, then from every table of the lake and its older versions.

    Content that meets all given criteria is erased; sender, recipients, time and size stay. The lake keeps a digest of
    each erased row, so that the audit can still verify the others; a text that is short enough to guess can be
    confirmed by its digest. Backups, exported files and the inboxes of readers are not changed.

    For example:

        posthouse pipeline erase --node ed25519:3b6a... --dry-run \
            --source https://relay.example.org
        posthouse pipeline erase --event 2c5f...e1 --reason 'request 4711'
        posthouse pipeline erase --mesh old-team --before 365d --lake-only
    """
    request = _request(node, mesh, event, before, reason)
    addresses = [] if lake_only else _addresses(request, pipeline_options)
    if dry_run:
        _count(request, addresses, pipeline_options, output)
        return
    key = load_key(pipeline_options.key_file)  # fail before anything is erased
    for address in addresses:
        erased = _erase_in_store(request, address, pipeline_options, key.node)
        output.note(f"{'erased':>9}  {address.url:<24} {erased:>12,} rows")
    open_sources(pipeline_options)  # fail before Spark starts
    spark = pipeline_options.session()
    try:
        run_once(pipeline_options, output, erasure=request)
    finally:
        spark.stop()


def _request(node: str | None, mesh: str | None, event: str | None, before: str | None, reason: str) -> ErasureRequest:
    from posthouse.journal.erase import ErasureRequest

    before_ns = None if before is None else parse_moment(before, "--before")
    request = ErasureRequest(node, mesh, event, before_ns, f"erased: {reason}" if reason else "erased")
    if not request.has_criteria:
        hint = "Give at least one of --node, --mesh, --event and --before."
        raise error("usage", text="this would erase the whole history", hint=hint)
    return request


def _addresses(request: ErasureRequest, pipeline_options: PipelineOptions) -> list[Address]:
    """Return the stores that may have such content; refuse a relay's own file, which only the relay may change."""
    from posthouse.model.node import is_node_id
    from posthouse.pipeline.audit.stores import kind_of
    from posthouse.pipeline.connector.source_access import parse_sources

    found: list[Address] = []
    for address in parse_sources(pipeline_options.sources()):
        kind = kind_of(Path(address.url)) if address.is_file else "relay"
        if kind == "relay" and not address.is_relay:
            hint = "Name the relay by its URL, --source https://..., or erase the lake alone with --lake-only."
            raise error("usage", text=f"only the relay itself can erase events of {address.url}", hint=hint)
        if kind == "bus" or (kind == "relay" and (request.node is None or is_node_id(request.node))):
            found.append(address)
    return found


def _erase_in_store(
    request: ErasureRequest,
    address: Address,
    pipeline_options: PipelineOptions,
    actor: str,
    *,
    is_dry_run: bool = False,
) -> int:
    """Erase the content of one store and return the number of rows."""
    from posthouse.journal.erase import erase_records

    if not address.is_relay:
        return erase_records(Path(address.url), request, actor, system_clock(), is_dry_run=is_dry_run)
    from posthouse.model.api import DeleteRequest

    ids = None if request.id is None else (request.id,)
    order = DeleteRequest(request.node, request.mesh, ids, request.before_ns, reason=request.reason, dry_run=is_dry_run)

    async def work(client: Client) -> int:
        return (await client.archive.delete(order)).matched

    return pipeline_options.relay_options(address.url).run(None, work)


def _count(
    request: ErasureRequest, addresses: list[Address], pipeline_options: PipelineOptions, output: Output
) -> None:
    from posthouse.pipeline.run.erase_rows import count_rows

    counts = {
        address.url: _erase_in_store(request, address, pipeline_options, "", is_dry_run=True) for address in addresses
    }
    counts |= count_rows(pipeline_options.open_lake(), request)
    output.result({"rows": counts}, table(("in", "rows to erase"), list(counts.items())))
