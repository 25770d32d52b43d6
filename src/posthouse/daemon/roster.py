"""The members and topics of the mesh as the relay last reported them, cached in a file so that names work offline.

Recipients are resolved here before a message is written. A full node id, or its 64 digits, always works. A name or a
prefix that two members match is refused, never guessed; so is a name whose key changed, and only that name.
The file also keeps when the relay admitted this node last, which the clock watch needs after a restart.

    {"format": "posthouse-roster-v1", "members": [{"node", "name", "role", "pinned"}], "topics": [...],
     "retention_days": n, "login": {"boot_id", "wall_ns", "boot_ns"}, "rotated": {FORMER NODE: NODE}}

If you change the format: give it a new name and treat the old one as absent; the file is only a cache.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from posthouse.client import Member
from posthouse.client.trust.pins import member_key_changed
from posthouse.client.trust.signing import Login
from posthouse.files import read_private, write_atomic
from posthouse.log import get_log
from posthouse.model.errors import PosthouseError, Transient, error
from posthouse.model.node import KEY_PREFIX_MIN_DIGITS, is_key_digits, is_node_id, node_from_hex, node_hex
from posthouse.model.subjects import validate_topic

log = get_log(__name__)
TOPIC_MARK = "#"
_PREFIX = re.compile(rf"[0-9a-f]{{{KEY_PREFIX_MIN_DIGITS},63}}")
_SCHEME = "ed25519:"


class _KeptLogin(msgspec.Struct, frozen=True):
    """Both clocks when the relay admitted this node."""

    boot_id: str
    wall_ns: int
    boot_ns: int


class _Content(msgspec.Struct, forbid_unknown_fields=True):
    format: Literal["posthouse-roster-v1"] = "posthouse-roster-v1"
    members: list[Member] = []
    topics: list[str] = []
    #: days for which the relay remembers ids; see Retained for the two special values
    retention_days: int = 0
    #: both clocks when the relay admitted this node last
    login: _KeptLogin | None = None
    #: former key of a member -> the key that it signed as its successor
    rotated: dict[str, str] = {}


_UNKNOWN_DAYS = 0
_FOREVER_DAYS = -1


class Retained(NamedTuple):
    """How long the relay remembers message ids."""

    #: None: forever
    days: int | None


class Roster:
    """The members and topics of one mesh."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._content = _Content()
        self._is_saved = True
        #: nodes that were online; in an open mesh they need not be members
        self._online: set[str] = set()
        self._index()
        if path is not None:
            self._load(path)

    def resolve(self, to: str, mesh: str) -> str:
        """Return the node id or #topic that a string names, or raise an error if it names none."""
        if to.startswith(TOPIC_MARK):
            topic = validate_topic(to[len(TOPIC_MARK) :])
            if topic not in self._topics:
                raise error("topic_unknown", topic=topic, mesh=mesh)
            return to
        if is_node_id(to):
            return to
        if is_key_digits(to):
            return node_from_hex(to)
        found = self._candidates(to, mesh)
        if len(found) > 1:
            raise error("recipient_ambiguous", to=to, candidates=", ".join(sorted(found)))
        if not found:
            raise error("member_name_unknown", name=to, mesh=mesh)
        return found.pop()

    def name_of(self, node: str) -> str | None:
        """Return the member name of a node."""
        return self._names.get(node)

    def host_of(self, node: str) -> str:
        """Return the member name of a node, or the beginning of its key; both work as the host of an address."""
        return self._names.get(node) or node_hex(node)[:KEY_PREFIX_MIN_DIGITS]

    @property
    def members(self) -> Sequence[Member]:
        return self._content.members

    @property
    def topics(self) -> Sequence[str]:
        return self._content.topics

    @property
    def retention(self) -> Retained | None:
        """How long the relay remembers ids; None while that is unknown."""
        days = self._content.retention_days
        return None if days == _UNKNOWN_DAYS else Retained(None if days == _FOREVER_DAYS else days)

    def set_members(self, members: Iterable[Member]) -> None:
        """Replace the members."""
        self._change(members=sorted(members, key=lambda member: member.name or member.node))

    def set_topics(self, topics: Iterable[str]) -> None:
        """Replace the topics."""
        self._change(topics=sorted(topics))

    def add_topic(self, topic: str) -> None:
        """Add a topic that exists."""
        if topic not in self._topics:
            self.set_topics({*self._topics, topic})

    def set_retention(self, retention: Retained) -> None:
        """Store how long the relay remembers ids."""
        self._change(retention_days=_FOREVER_DAYS if retention.days is None else retention.days)

    def last_login(self, boot_id: str) -> Login | None:
        """Return both clocks when the relay admitted this node last, if that was in this boot."""
        kept = self._content.login
        return None if kept is None or kept.boot_id != boot_id else Login(kept.wall_ns, kept.boot_ns)

    def set_login(self, login: Login, boot_id: str) -> None:
        """Store both clocks of a login."""
        self._change(login=_KeptLogin(boot_id, *login))

    def note_rotated(self, node: str, before: str) -> None:
        """Store that a member has a new key, which its previous key signed."""
        self._change(rotated=self._content.rotated | {before: node})

    def is_replaced(self, node: str) -> bool:
        """Return True for a key that was replaced, if this host has seen the rotation."""
        return node in self._content.rotated

    def former_key(self, node: str) -> str | None:
        """Return the key that a member's key replaced, if this host has seen the rotation."""
        return next((before for before, now in self._content.rotated.items() if now == node), None)

    def add_online(self, nodes: Iterable[str]) -> None:
        """Add nodes that are online, members or not."""
        self._online.update(nodes)
        self._index()

    def _candidates(self, to: str, mesh: str) -> set[str]:
        named = [member for member in self._content.members if member.name == to]
        for member in named:
            if member.pinned is not None:
                raise member_key_changed(mesh, to, member.pinned, member.node)
        found = {member.node for member in named}
        digits = to.removeprefix(_SCHEME)
        if _PREFIX.fullmatch(digits):
            found |= {node for node in self._nodes if node_hex(node).startswith(digits)}
        return found

    def _change(self, **fields: object) -> None:
        changed = msgspec.structs.replace(self._content, **fields)
        if changed != self._content:
            self._content = changed
            self._is_saved = False
            self._index()
        if not self._is_saved:
            self._save()

    def _save(self) -> None:
        if self._path is None:
            return
        try:
            write_atomic(self._path, msgspec.json.encode(self._content) + b"\n")
            self._is_saved = True
        except Transient as failure:  # a full disk: the next refresh tries again
            log.warning("roster_not_saved", code=failure.code, reason=str(failure))

    def _index(self) -> None:
        self._topics = set(self._content.topics)
        # a name whose key changed resolves to no member until a person trusts the new key
        trusted = [member for member in self._content.members if member.pinned is None]
        self._names = {member.node: member.name for member in trusted if member.name is not None}
        for before, node in reversed(self._content.rotated.items()):
            if node in self._names:  # messages of the former key stay under the name
                self._names.setdefault(before, self._names[node])
        self._nodes = {member.node for member in self._content.members} | self._online

    def _load(self, path: Path) -> None:
        try:
            self._content = msgspec.json.decode(read_private(path), type=_Content)
        except (FileNotFoundError, msgspec.MsgspecError, PosthouseError):
            return  # the next refresh writes it again
        self._index()
