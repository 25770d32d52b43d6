"""Invites: one string that lets another host join a mesh.

    posthouse://HOST:PORT/MESH?relay=<relay node id>&code=<one-time>

The relay's node id is part of it, so that the code is only ever shown to the relay that made it. If you change the
form: 1. the relay that writes it, 2. docs/protocol.md, 3. the examples.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode, urlsplit

from posthouse.client.relay_url import RelayUrl, relay_at
from posthouse.model.errors import PosthouseError, error
from posthouse.model.node import validate_mesh_name, validate_node_id

SCHEME = "posthouse"


@dataclass(frozen=True, slots=True)
class Invite:
    """What an invite says."""

    url: RelayUrl
    mesh: str
    #: node id of the relay
    relay: str
    #: a secret: who has it can join
    code: str = field(repr=False)

    def __str__(self) -> str:
        query = urlencode({"relay": self.relay, "code": self.code}, safe=":")
        return f"{SCHEME}://{self.url.authority}/{self.mesh}?{query}"


def parse_invite(text: str) -> Invite:
    """Return the invite in a string, or raise invite_malformed; the code never shows in the error."""
    try:
        parts = urlsplit(text.strip())
        fields = dict(parse_qsl(parts.query, strict_parsing=True, max_num_fields=2)) if parts.query else {}
    except ValueError:
        raise error("invite_malformed", reason="it is not a URL with two parameters") from None
    if parts.scheme != SCHEME:
        raise error("invite_malformed", reason=f"it does not begin with {SCHEME}://")
    if set(fields) != {"relay", "code"}:
        raise error("invite_malformed", reason="it has not the parameters relay and code")
    try:
        url = relay_at(parts.netloc)
        mesh = validate_mesh_name(parts.path.removeprefix("/"))
        relay = validate_node_id(fields["relay"])
    except PosthouseError as fault:
        raise error("invite_malformed", reason=str(fault)) from fault
    return Invite(url, mesh, relay, fields["code"])
