"""Pinned keys of relays and members, and the meshes this user has joined: two private JSON files.

The mesh that the user has chosen for commands that name none is a third file, `default_mesh`, with its name alone.

An address and a name are claims; the key behind them is the identity. It is pinned at first use, and another key is
refused until a person trusts it; other names are not affected. Members are pinned per relay key and mesh, because names
are unique only there. A mesh name refers to one relay; joining the same name elsewhere replaces it. Readers of a file
see the old or the new content, never a part. A lock file serializes changes and is never deleted: a lock on a deleted
file protects nothing.

    {"format": "posthouse-pins-v2", "relays": {ORIGIN: NODE}, "members": {RELAY_NODE: {MESH: {NAME: NODE}}},
     "certificates": {ORIGIN: "sha256:..."}}
    {"format": "posthouse-meshes-v1", "meshes": {MESH: {"relay": ORIGIN, "node": RELAY_NODE, "name": MY_NAME}}}

If you change a format: 1. give it a new name, 2. read the old one too, 3. add a test with a file of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeVar

import msgspec

from posthouse.files import home_directory, locked, private_dir, read_private, write_atomic
from posthouse.model.errors import PosthouseError, error
from posthouse.model.node import is_mesh_name

T = TypeVar("T", bound=msgspec.Struct)
R = TypeVar("R")


class SharedJsonFile(Generic[T]):
    """One JSON file with a value of one type; a missing file is the default value."""

    def __init__(self, path: Path, type: type[T]) -> None:  # noqa: A002 - the type of the value
        self.path = path
        self._type = type
        self._decoder = msgspec.json.Decoder(type)

    def read(self) -> T:
        """Return the current value."""
        try:
            data = read_private(self.path)
        except FileNotFoundError:
            return self._type()
        try:
            return self._decoder.decode(data)
        except ValueError as invalid:
            raise error("pins_malformed", path=str(self.path), reason=str(invalid)) from invalid

    def change(self, edit: Callable[[T], R]) -> R:
        """Apply `edit` to the current value, write it if it changed, and return the result of `edit`."""
        private_dir(self.path.parent)
        with locked(self.path.with_name(self.path.name + ".lock")):
            value = self.read()
            before = msgspec.json.encode(value)
            result = edit(value)
            after = msgspec.json.encode(value)
            if after != before:
                write_atomic(self.path, msgspec.json.format(after, indent=2) + b"\n")
        return result


class PinsContent(msgspec.Struct, forbid_unknown_fields=True):
    """The content of the file."""

    #: v1 has no certificates
    format: Literal["posthouse-pins-v1", "posthouse-pins-v2"] = "posthouse-pins-v2"
    relays: dict[str, str] = {}
    members: dict[str, dict[str, dict[str, str]]] = {}
    #: fingerprints of certificates that no authority has signed
    certificates: dict[str, str] = {}


class Edit(Protocol):
    """A change of the content; returns the previous entry."""

    def __call__(self, content: PinsContent, /) -> str | None: ...


class Pins:
    """The pins of one user, in a file or, without a path, in memory."""

    def __init__(self, path: Path | None = None) -> None:
        self._file = None if path is None else SharedJsonFile(path, PinsContent)
        self._memory = PinsContent()

    @classmethod
    def of_home(cls) -> Pins:
        """Return the pins of this user."""
        return cls(home_directory() / "pins.json")

    def relay(self, origin: str) -> str | None:
        """Return the pinned key of a relay, or None."""
        return self._read().relays.get(origin)

    def certificate(self, origin: str) -> str | None:
        """Return the fingerprint of the one certificate that a relay may have, or None."""
        return self._read().certificates.get(origin)

    def member(self, relay: str, mesh: str, name: str) -> str | None:
        """Return the pinned key of a member, or None."""
        return self._read().members.get(relay, {}).get(mesh, {}).get(name)

    def check_relay(self, origin: str, found: str) -> None:
        """Pin the key of a relay at first use; raise relay_key_changed if another one is pinned."""
        pinned = self.relay(origin)
        if pinned is None:
            pinned = self._pin_relay(origin, found)
        if pinned != found:
            raise relay_key_changed(origin, pinned, found)

    def pin_members(self, relay: str, mesh: str, found: Mapping[str, str]) -> dict[str, str]:
        """Pin members (name -> node id) at first use; return the pinned key of each name that has another key now."""
        known = self._read().members.get(relay, {}).get(mesh, {})
        if any(name not in known for name in found):
            self._pin_members(relay, mesh, found)
            known = self._read().members[relay][mesh]  # another process may have pinned one of them first
        return {name: known[name] for name, node in found.items() if known[name] != node}

    def trust_relay(self, origin: str, node: str) -> str | None:
        """Replace the pinned key of a relay and return the previous one."""

        def edit(content: PinsContent) -> str | None:
            before = content.relays.get(origin)
            content.relays[origin] = node
            return before

        return self._change(edit)

    def trust_certificate(self, origin: str, fingerprint: str) -> str | None:
        """Accept one certificate of a relay and no other; return the fingerprint accepted before."""

        def edit(content: PinsContent) -> str | None:
            before = content.certificates.get(origin)
            content.certificates[origin] = fingerprint
            content.format = "posthouse-pins-v2"
            return before

        return self._change(edit)

    def trust_member(self, relay: str, mesh: str, name: str, node: str) -> str | None:
        """Replace the pinned key of a member and return the previous one."""

        def edit(content: PinsContent) -> str | None:
            names = content.members.setdefault(relay, {}).setdefault(mesh, {})
            before = names.get(name)
            names[name] = node
            return before

        return self._change(edit)

    def _pin_relay(self, origin: str, found: str) -> str:
        def edit(content: PinsContent) -> str | None:
            return content.relays.setdefault(origin, found)

        return self._change(edit) or found

    def _pin_members(self, relay: str, mesh: str, found: Mapping[str, str]) -> None:
        def edit(content: PinsContent) -> str | None:
            names = content.members.setdefault(relay, {}).setdefault(mesh, {})
            for name, node in found.items():
                names.setdefault(name, node)
            return None

        self._change(edit)

    def _read(self) -> PinsContent:
        return self._memory if self._file is None else self._file.read()

    def _change(self, edit: Edit) -> str | None:
        return edit(self._memory) if self._file is None else self._file.change(edit)


def relay_key_changed(origin: str, pinned: str, found: str) -> PosthouseError:
    """Return the error for a relay whose key is not the expected one."""
    hint = f"Ask its administrator; if the change is intended, run `posthouse trust {origin}`."
    return error("relay_key_changed", relay=origin, pinned=pinned, found=found, hint=hint)


def member_key_changed(mesh: str, name: str, pinned: str, found: str) -> PosthouseError:
    """Return the error for a member whose key is not the expected one."""
    command = f"posthouse trust {name} --mesh {mesh} --node {found}"
    hint = f"Ask {name} over another channel for the new key; if it is this one, run `{command}`."
    return error("member_key_changed", mesh=mesh, name=name, pinned=pinned, found=found, hint=hint)


class Membership(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A mesh that this user has joined."""

    #: origin of the relay's address
    relay: str
    #: node id of the relay
    node: str
    #: this node's member name, if it has one
    name: str | None = None


class MembershipsContent(msgspec.Struct, forbid_unknown_fields=True):
    """The content of the file."""

    format: Literal["posthouse-meshes-v1"] = "posthouse-meshes-v1"
    meshes: dict[str, Membership] = {}


class Memberships:
    """The meshes of one user, in a file."""

    def __init__(self, path: Path) -> None:
        self._file = SharedJsonFile(path, MembershipsContent)

    @classmethod
    def of_home(cls) -> Memberships:
        """Return the meshes of this user."""
        return cls(home_directory() / "meshes.json")

    def all(self) -> dict[str, Membership]:
        """Return every mesh by name."""
        return self._file.read().meshes

    def get(self, mesh: str) -> Membership | None:
        """Return the membership in a mesh, or None."""
        return self.all().get(mesh)

    def remember(self, mesh: str, membership: Membership) -> Membership | None:
        """Store the membership in a mesh and return the previous one."""

        def edit(content: MembershipsContent) -> Membership | None:
            before = content.meshes.get(mesh)
            content.meshes[mesh] = membership
            return before

        return self._file.change(edit)

    def forget(self, mesh: str) -> None:
        """Forget a mesh that this user has left."""

        def edit(content: MembershipsContent) -> None:
            content.meshes.pop(mesh, None)

        self._file.change(edit)
        if self.chosen() == mesh:
            self._choice.unlink()

    @property
    def _choice(self) -> Path:
        return self._file.path.with_name("default_mesh")

    def chosen(self) -> str | None:
        """Return the mesh that the user has chosen for commands that name none, or None."""
        try:
            name = self._choice.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return None
        return name if is_mesh_name(name) else None

    def choose(self, mesh: str) -> None:
        """Choose the mesh for commands that name none."""
        write_atomic(self._choice, f"{mesh}\n".encode())
