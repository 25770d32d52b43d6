"""The mailboxes a group of messages touches: how full they are, counted on in memory while the group is judged."""

from __future__ import annotations

from collections.abc import Iterable

from posthouse.relay.deliver.mail import Mail
from posthouse.relay.deliver.settings import DeliverySettings
from posthouse.relay.store.interface import Unit

#: mesh and node
Name = tuple[str, str]
_EXPIRED_PER_LOOK = 1_000


class GroupBox:
    """A mailbox as one group sees it."""

    __slots__ = ("added", "mesh", "node", "number", "rows")

    def __init__(self, mesh: str, node: str) -> None:
        self.mesh = mesh
        self.node = node
        #: in the store; 0 while there is no such mailbox, all that were written have one
        self.number = 0
        self.rows = 0
        #: rows of this group, not written yet
        self.added = 0


class Boxes:
    """The mailboxes that a group touches."""

    def __init__(self, unit: Unit, settings: DeliverySettings, mail: Mail) -> None:
        self._unit = unit
        self._settings = settings
        self._mail = mail
        self._boxes: dict[Name, GroupBox] = {}

    def load(self, names: Iterable[Name]) -> list[GroupBox]:
        """Return mailboxes, in order; those that were not read yet are read with one statement per mesh."""
        boxes, unread = [], []
        for name in names:
            box = self._boxes.get(name)
            if box is None:
                box = self._boxes[name] = GroupBox(*name)
                unread.append(name)
            boxes.append(box)
        self._read(unread)
        return boxes

    def find(self, mesh: str, node: str) -> GroupBox:
        """Return a mailbox that was loaded."""
        return self._boxes[mesh, node]

    def has_room(self, box: GroupBox) -> bool:
        """Tell whether one more message fits; what is too old makes room first."""
        most = self._settings.queue_max
        if box.rows + box.added < most:
            return True
        before_ns = self._unit.now_ns - self._settings.queue_ttl_ns
        closed = self._unit.deliveries.expire(box.mesh, box.node, before_ns, _EXPIRED_PER_LOOK)
        if closed.seqs:
            box.rows -= len(closed.seqs)
            self._mail.closed.append(closed)
        return box.rows + box.added < most

    def write(self, boxes: Iterable[GroupBox]) -> None:
        """Write the depths; afterwards every one of these mailboxes has its number."""
        changed = [box for box in dict.fromkeys(boxes) if box.added or not box.number]
        self._unit.deliveries.grow([(box.mesh, box.node, box.added) for box in changed])
        for box in changed:
            box.rows, box.added = box.rows + box.added, 0
        self._read([(box.mesh, box.node) for box in changed if not box.number])

    def _read(self, names: list[Name]) -> None:
        nodes: dict[str, list[str]] = {}
        for mesh, node in names:
            nodes.setdefault(mesh, []).append(node)
        for mesh, wanted in nodes.items():
            for node, found in self._unit.deliveries.boxes(mesh, wanted).items():
                box = self._boxes[mesh, node]
                box.number, box.rows = found.mailbox, found.open_rows
