"""`posthouse join`: join a mesh on another host, with one string."""

from __future__ import annotations

import getpass
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.identity import key_path
from posthouse.cli.reach import DEFAULT_REACH, Reach

if TYPE_CHECKING:
    from posthouse.client import Client, Invite
    from posthouse.keys import NodeKey


def join(
    invite: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="The invite, in quotes; `-` reads it from stdin.")
    ],
    /,
    *,
    name: Annotated[str | None, Parameter(help="Your name in the mesh; without it your login name.")] = None,
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> None:
    """Join a mesh by an invite; a key is made if there is none, and commands find the relay by the mesh from now on.

    The code of the invite is only shown to the relay that made it; another key at its address is refused.

    For example:

        posthouse join 'posthouse://relay.example:7420/team?relay=ed25519:03a1...31b8&code=Zk3...' --name bob
        posthouse join - < invite.txt
    """
    from posthouse.client import Membership, Memberships, parse_invite

    given = parse_invite(_read(invite))
    joined = _join(given, name or _login_name(), reach)
    remembered = Membership(joined["url"], given.relay, joined.get("name"))
    before = Memberships.of_home().remember(given.mesh, remembered)
    output.answer(joined, f"joined {given.mesh} as {joined.get('name')} ({joined.get('role')}) on {joined['url']}")
    if before is not None and before.node != given.relay:
        output.note(f"mesh {given.mesh} meant {before.relay} until now; use --relay for that one")


def _join(invite: Invite, name: str, reach: Reach) -> dict[str, Any]:
    import asyncio

    from posthouse.client import Client

    # the invite says where and who the relay is; --relay only names another way to the same one
    url = invite.url if reach.relay is None else reach.url()
    client = Client(url, _own_key(reach), mesh=invite.mesh, relay_node=invite.relay, options=reach.options())

    async def work(client: Client) -> dict[str, Any]:
        async with client:
            return await client.join(replace(invite, url=url), name) | {"url": url.origin}

    return asyncio.run(work(client))


def _own_key(reach: Reach) -> NodeKey:
    from posthouse.keys import keyfile

    return keyfile.load_or_create(key_path(reach.key_file))


def _read(invite: str) -> str:
    import sys

    return sys.stdin.read() if invite == "-" else invite


def _login_name() -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", getpass.getuser())[:64] or "node"
