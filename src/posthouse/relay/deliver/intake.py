"""The accept path's stage for messages and confirmations: one batch of it per group, inside the transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from posthouse.model.confirmation import Confirmation
from posthouse.model.errors import PosthouseError
from posthouse.relay.answers import Accepted, Answer
from posthouse.relay.deliver.audience import Audience
from posthouse.relay.deliver.confirm import Confirmations
from posthouse.relay.deliver.mail import Mail
from posthouse.relay.deliver.messages import Messages
from posthouse.relay.deliver.rows import Addressed
from posthouse.relay.deliver.settings import DEFAULT_SETTINGS, DeliverySettings
from posthouse.relay.store.interface import EventRow, Unit


class Handler(Protocol):
    """Handles the rows of one group whose tags have a meaning of one sort."""

    def is_told_by_id(self, row: EventRow) -> bool:
        """Tell whether only its id can tell that a row was accepted before; else `known` does."""
        ...

    def known(self, row: EventRow) -> Answer | str | None:
        """Return the answer to what was accepted before under another id, or the id of the same in this group."""
        ...

    def claim(self, row: EventRow, limited: PosthouseError | None) -> EventRow | PosthouseError:
        """Judge what only the tables can tell; return the row with its record complete, or why it cannot be written."""
        ...

    def write(self, accepted: Sequence[tuple[EventRow, int]]) -> None:
        """Write everything that belongs to rows that have their seq now."""
        ...

    def answer(self, row: EventRow, seq: int, *, is_repeated: bool) -> Accepted:
        """Return the answer of a row of this group; a repeated one is in it twice."""
        ...


class Intake:
    """What lasts from group to group."""

    def __init__(self, settings: DeliverySettings = DEFAULT_SETTINGS) -> None:
        self.settings = settings
        self._audience = Audience()

    def begin(self, unit: Unit, rows: Sequence[EventRow]) -> Batch:
        """Begin the messages and confirmations among these rows."""
        return Batch(unit, self.settings, self._audience, [row for row in rows if row.matter is not None])


class Batch:
    """The messages and confirmations of one group."""

    def __init__(self, unit: Unit, settings: DeliverySettings, audience: Audience, rows: Sequence[EventRow]) -> None:
        self.mail = Mail()
        #: by what the tags say
        self.handlers: dict[type, Handler] = {
            Addressed: Messages(unit, settings, audience, rows, self.mail),
            Confirmation: Confirmations(unit, settings, self.mail),
        }

    def write(self, accepted: Sequence[tuple[EventRow, int]]) -> None:
        """Write everything that belongs to rows that have their seq now."""
        for matter, handler in self.handlers.items():
            rows = [each for each in accepted if type(each[0].matter) is matter]
            if rows:
                handler.write(rows)
