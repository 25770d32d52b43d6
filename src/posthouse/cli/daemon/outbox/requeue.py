"""`posthouse daemon outbox requeue`: send a row anew, under a new id."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.near import USUAL, Near
from posthouse.model.errors import error


def requeue(
    id: Annotated[str, Parameter(help="Its id, client_message_id or event id.")],  # noqa: A002 - the domain's word
    /,
    *,
    new_client_id: Annotated[str | None, Parameter(help="The client_message_id of the new row.")] = None,
    auto: Annotated[bool, Parameter(negative=(), show_default=False, help="Let the daemon make the new id.")] = False,
    patch_payload: Annotated[
        Path | None, Parameter(help="Send the text in this file (`-`: stdin) instead of the old one.")
    ] = None,
    near: Near = USUAL,
    output: Output = PLAIN,
) -> None:
    """Abort a dead or pending row and queue its message again, to the same destination, under a new id.

    For example:

        posthouse daemon outbox requeue 01JQ8Z5N0000000000000000AB --auto
        posthouse daemon outbox requeue 01JQ8Z5N0000000000000000AB --new-client-id build-7b --patch-payload fixed.txt
    """
    if (new_client_id is None) != auto:
        raise error("usage", text="give either --new-client-id ID or --auto")
    text = None if patch_payload is None else _read(patch_payload)
    with near.client() as daemon:
        made = daemon.requeue(id, new_client_message_id=new_client_id, message=text)
    output.answer(made, f"{made.aborted_row_id} aborted, {made.new_row_id} queued as {made.new_client_message_id}")


def _read(path: Path) -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise error("usage", text=f"{path} cannot be read: {failure}") from failure
