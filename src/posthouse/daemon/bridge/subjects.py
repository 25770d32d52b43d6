"""The subjects of the bridge: mesh.<mesh>.in.* on the way in, mesh.<mesh>.out.* on the way out.

The two never match each other, and nothing but `out` goes to the outbox: so nothing echoes.
"""

from __future__ import annotations

from posthouse.daemon.roster import TOPIC_MARK
from posthouse.model.errors import error
from posthouse.model.node import node_from_hex, node_hex


class BridgeSubjects:
    """The subjects of one mesh."""

    def __init__(self, mesh: str) -> None:
        self._in = f"mesh.{mesh}.in"
        self._out = f"mesh.{mesh}.out"
        self._member = f"mesh.{mesh}.member"
        #: the endpoint of the daemon
        self.outgoing = f"{self._out}.>"
        #: who owns it
        self.owner = f"daemon.{mesh}"

    def arrival(self, topic: str | None, sender: str) -> str:
        """Return where a message is published."""
        return f"{self._in}.dm.{node_hex(sender)}" if topic is None else f"{self._in}.topic.{topic}"

    def answer(self, topic: str | None, sender: str) -> str:
        """Return where an answer to a message is published."""
        return f"{self._out}.dm.{node_hex(sender)}" if topic is None else f"{self._out}.topic.{topic}"

    def member(self, node: str) -> str:
        """Return as whom a message is published."""
        return f"{self._member}.{node_hex(node)}"

    def destination(self, subject: str) -> str:
        """Return the node id or #topic an outgoing subject stands for."""
        kind, _, rest = subject.removeprefix(f"{self._out}.").partition(".")
        if kind == "topic" and rest:
            return TOPIC_MARK + rest
        if kind == "dm":
            return node_from_hex(rest)
        raise error("subject_invalid", subject=subject, reason="it is neither out.topic.<topic> nor out.dm.<64 hex>")
