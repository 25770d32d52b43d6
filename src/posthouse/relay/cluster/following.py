"""Apply what other relays commit to the memory of this one: rights, live subscriptions, reader sessions.

Called on the event loop in commit order, between the results of this relay's own units. Rights are applied first, so
that no event reaches a node that has lost the right to read it. A reader session does not get foreign messages from
memory: it falls behind and reads its queue, as it does after any interruption.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import structlog

from posthouse.model.errors import Fatal, error
from posthouse.model.event import PROFILE, Event
from posthouse.relay.accept.mesh_registry import Meshes
from posthouse.relay.messages.sessions import ReaderSessions
from posthouse.relay.store.shared_store import ForeignCommits, ForeignRecord
from posthouse.relay.wire.accept_results import Committed

log = structlog.get_logger(__name__)
_event = msgspec.json.Decoder(Event).decode
_body = msgspec.json.Decoder(dict[str, Any]).decode


class Following:
    """Applies foreign commits."""

    def __init__(
        self,
        meshes: Meshes,
        sessions: ReaderSessions,
        announce: Callable[[Sequence[Committed]], None],
        on_fatal: Callable[[Fatal], None],
    ) -> None:
        self._meshes = meshes
        self._on_fatal = on_fatal
        self._sessions = sessions
        self._announce = announce

    def apply(self, commits: ForeignCommits) -> None:
        """Apply commits in order. If this fails, the rights in memory are outdated, so the relay must end."""
        try:
            self._apply(commits)
        except Exception:
            log.exception("commits_not_applied")
            reason = "this relay could not apply what another one has committed"
            failure = error("store_failed", path="memory", reason=reason)
            assert isinstance(failure, Fatal)
            self._on_fatal(failure)

    def _apply(self, commits: ForeignCommits) -> None:
        for mesh, rows in commits.meshes.items():
            self._meshes.reload(mesh, rows)
        if commits.meshes:  # a retired key changes all of them
            self._meshes.changed_at = commits.records[-1].seq
        committed = [_committed(record, record.raw) for record in commits.records if record.raw is not None]
        if committed:
            self._announce(committed)
        for each in committed:
            if each.event.kind == PROFILE:
                self._sessions.announce_profile(each.event)
        for record in commits.records:
            self._apply_delivery(record)

    def _apply_delivery(self, record: ForeignRecord) -> None:
        """Let the sessions of the nodes that a record concerns read the store."""
        mesh, sessions = record.mesh or "", self._sessions
        if not sessions.has_any(mesh):
            return
        if record.type == "message.accepted":
            body = _body(record.body)
            for node in body["recipients"]:
                sessions.apply_reopened(mesh, node)
            for left_out in body.get("not_queued", ()):
                sessions.note_gap(mesh, left_out["recipient"])
        elif record.type == "pinch.accepted" or record.type == "delivery.requeued":
            sessions.apply_reopened(mesh, _body(record.body)["recipient"])
        elif record.type in ("confirmation.accepted", "pinch.confirmed"):
            sessions.apply_confirmed_elsewhere(mesh, self._meshes.successor(_body(record.body)["sender"]))
        elif record.type.startswith("delivery.") and record.type not in ("delivery.sent", "delivery.receipt"):
            reader = _body(record.body).get("recipient") or record.actor or ""
            sessions.check_in_flight(mesh, reader)


def _committed(record: ForeignRecord, raw: bytes) -> Committed:
    return Committed(record.seq, _event(raw), raw, record.mesh or "", record.recipient)
