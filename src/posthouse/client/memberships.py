"""The meshes this node has joined or made, and where their relays are, so that a command needs the mesh's name only.

    {"format": "posthouse-meshes-v1", "meshes": {MESH: {"relay": ORIGIN, "node": RELAY_NODE, "name": MY_NAME}}}

A mesh name means one relay here; joining the same name elsewhere replaces it, and says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from posthouse.client.document import Document
from posthouse.files.home import home_directory


class Membership(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A mesh as this node knows it."""

    #: origin of the relay's address
    relay: str
    #: node id of the relay
    node: str
    #: the name this node has there, if it has one
    name: str | None = None


class MembershipsContent(msgspec.Struct, forbid_unknown_fields=True):
    """The file, as it is."""

    format: Literal["posthouse-meshes-v1"] = "posthouse-meshes-v1"
    meshes: dict[str, Membership] = {}


class Memberships:
    """The meshes of one user, in a file."""

    def __init__(self, path: Path) -> None:
        self._document = Document(path, MembershipsContent)

    @classmethod
    def of_home(cls) -> Memberships:
        """Return the meshes of this user."""
        return cls(home_directory() / "meshes.json")

    def all(self) -> dict[str, Membership]:
        """Return every mesh by name."""
        return self._document.read().meshes

    def get(self, mesh: str) -> Membership | None:
        """Return what is known of a mesh."""
        return self.all().get(mesh)

    def remember(self, mesh: str, membership: Membership) -> Membership | None:
        """Note a mesh, and return what stood there before."""

        def edit(content: MembershipsContent) -> Membership | None:
            before = content.meshes.get(mesh)
            content.meshes[mesh] = membership
            return before

        return self._document.change(edit)
