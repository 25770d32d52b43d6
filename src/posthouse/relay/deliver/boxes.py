"""Mailbox rows as one group of messages sees and changes them: numbers and depths, read once, written once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from posthouse.relay.deliver.mail import Mail
from posthouse.relay.deliver.settings import DeliverySettings
from posthouse.relay.store.interface import Unit

#: mesh and node
Name = tuple[str, str]
_EXPIRED_PER_LOOK = 1_000


class _Depth:
    __slots__ = ("added", "rows")

    def __init__(self) -> None:
        self.rows = 0
        #: rows of this group, not written yet
        self.added = 0


class Boxes:
    """The mailboxes that a group touches."""

    def __init__(self, unit: Unit, settings: DeliverySettings, mail: Mail) -> None:
        self._unit = unit
        self._settings = settings
        self._mail = mail
        self._depths: dict[Name, _Depth] = {}
        #: of the mailboxes that exist; all that were written do
        self.numbers: dict[Name, int] = {}

    def load(self, names: Iterable[Name]) -> None:
        """Read the rows of mailboxes that were not read yet."""
        wanted: dict[str, list[str]] = {}
        for name in names:
            if name not in self._depths:
                self._depths[name] = _Depth()
                wanted.setdefault(name[0], []).append(name[1])
        for mesh, nodes in wanted.items():
            self._read(mesh, nodes)

    def has_room(self, mesh: str, node: str) -> bool:
        """Tell whether one more message fits; what is too old makes room first."""
        depth = self._depths[mesh, node]
        if depth.rows + depth.added < self._settings.queue_max:
            return True
        before_ns = self._unit.now_ns - self._settings.queue_ttl_ns
        closed = self._unit.deliveries.expire(mesh, node, before_ns, _EXPIRED_PER_LOOK)
        if closed.seqs:
            depth.rows -= len(closed.seqs)
            self._mail.closed.append(closed)
        return depth.rows + depth.added < self._settings.queue_max

    def take(self, mesh: str, node: str) -> None:
        """Take the room of one message."""
        self._depths[mesh, node].added += 1

    def write(self, names: Sequence[Name]) -> None:
        """Write the depths; afterwards every one of these mailboxes has its number."""
        changed = [name for name in dict.fromkeys(names) if self._depths[name].added or name not in self.numbers]
        self._unit.deliveries.grow([(mesh, node, self._depths[mesh, node].added) for mesh, node in changed])
        missing: dict[str, list[str]] = {}
        for mesh, node in changed:
            depth = self._depths[mesh, node]
            depth.rows, depth.added = depth.rows + depth.added, 0
            if (mesh, node) not in self.numbers:
                missing.setdefault(mesh, []).append(node)
        for mesh, nodes in missing.items():
            self._read(mesh, nodes)

    def _read(self, mesh: str, nodes: list[str]) -> None:
        for node, box in self._unit.deliveries.boxes(mesh, nodes).items():
            depth = self._depths[mesh, node]
            depth.rows = box.open_rows
            self.numbers[mesh, node] = box.mailbox
