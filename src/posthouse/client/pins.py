"""Pins: which key a relay and a member had when this node first saw them.

A relay's address and a member's name are claims; the key behind them is what counts. It is noted at first
use, and another key is refused from then on until somebody trusts it by hand. Members are pinned per relay key and
mesh, because names are unique only there.

    {"format": "posthouse-pins-v1", "relays": {ORIGIN: NODE}, "members": {RELAY_NODE: {MESH: {NAME: NODE}}}}

If you change the form: give it a new name, read the old one too, add a test with a file of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from posthouse.client.document import Document
from posthouse.files.home import home_directory
from posthouse.model.errors import PosthouseError, error


class PinsContent(msgspec.Struct, forbid_unknown_fields=True):
    """The file, as it is."""

    format: Literal["posthouse-pins-v1"] = "posthouse-pins-v1"
    relays: dict[str, str] = {}
    members: dict[str, dict[str, dict[str, str]]] = {}


class Edit(Protocol):
    """A change of the content that tells what stood there before."""

    def __call__(self, content: PinsContent, /) -> str | None: ...


class Pins:
    """The pins of one user, in a file or, without one, in memory."""

    def __init__(self, path: Path | None = None) -> None:
        self._document = None if path is None else Document(path, PinsContent)
        self._memory = PinsContent()

    @classmethod
    def of_home(cls) -> Pins:
        """Return the pins of this user."""
        return cls(home_directory() / "pins.json")

    def relay(self, origin: str) -> str | None:
        """Return the key a relay had, or None when it is new."""
        return self._read().relays.get(origin)

    def member(self, relay: str, mesh: str, name: str) -> str | None:
        """Return the key a member had, or None when it is new."""
        return self._read().members.get(relay, {}).get(mesh, {}).get(name)

    def check_relay(self, origin: str, found: str) -> None:
        """Pin the key of a relay at first use; raise relay_key_changed when another one is pinned."""
        pinned = self.relay(origin)
        if pinned is None:
            pinned = self._pin_relay(origin, found)
        if pinned != found:
            raise relay_key_changed(origin, pinned, found)

    def check_members(self, relay: str, mesh: str, found: Mapping[str, str]) -> None:
        """Pin members (name -> node id) at first use; raise member_key_changed for one that has another key."""
        known = self._read().members.get(relay, {}).get(mesh, {})
        for name, node in found.items():
            if (pinned := known.get(name, node)) != node:
                raise member_key_changed(mesh, name, pinned, node)
        if any(name not in known for name in found):
            self._pin_members(relay, mesh, found)

    def trust_relay(self, origin: str, node: str) -> str | None:
        """Pin this key of a relay whatever was pinned before, and return that."""

        def edit(content: PinsContent) -> str | None:
            before = content.relays.get(origin)
            content.relays[origin] = node
            return before

        return self._change(edit)

    def trust_member(self, relay: str, mesh: str, name: str, node: str) -> str | None:
        """Pin this key of a member whatever was pinned before, and return that."""

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
        return self._memory if self._document is None else self._document.read()

    def _change(self, edit: Edit) -> str | None:
        return edit(self._memory) if self._document is None else self._document.change(edit)


def relay_key_changed(origin: str, pinned: str, found: str) -> PosthouseError:
    """Return the error of a relay that shows another key than expected."""
    hint = f"Ask its administrator; if the change is meant, run `posthouse trust {origin}`."
    return error("relay_key_changed", relay=origin, pinned=pinned, found=found, hint=hint)


def member_key_changed(mesh: str, name: str, pinned: str, found: str) -> PosthouseError:
    """Return the error of a member that has another key than expected."""
    hint = f"Ask {name} over another way; if the change is meant, run `posthouse trust {name} --mesh {mesh}`."
    return error("member_key_changed", mesh=mesh, name=name, pinned=pinned, found=found, hint=hint)
