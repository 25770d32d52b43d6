"""The accept path's stage for messages and confirmations: one batch of it per group, inside the transaction."""

from __future__ import annotations

from collections.abc import Sequence

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


class Intake:
    """What lasts from group to group."""

    def __init__(self, settings: DeliverySettings = DEFAULT_SETTINGS) -> None:
        self.settings = settings
        self._audience = Audience()

    def begin(self, unit: Unit, rows: Sequence[EventRow]) -> Batch:
        """Begin the messages and confirmations among these rows."""
        return Batch(unit, self.settings, self._audience, [row for row in rows if row.matter is not None])


class Batch:
    """The messages and confirmations of one group; every method is for rows that have a matter."""

    def __init__(self, unit: Unit, settings: DeliverySettings, audience: Audience, rows: Sequence[EventRow]) -> None:
        self.mail = Mail()
        self._messages = Messages(unit, settings, audience, rows, self.mail)
        self._confirmations = Confirmations(unit, settings, self.mail)

    def known(self, row: EventRow) -> Answer | str | None:
        """Return the answer to a message that was accepted before, or the id of the one in this group."""
        return self._messages.known(row, row.matter) if isinstance(row.matter, Addressed) else None

    def claim(self, row: EventRow, limited: PosthouseError | None) -> PosthouseError | None:
        """Judge what only the tables can tell; return why the row cannot be written, or None."""
        if isinstance(row.matter, Addressed):
            return self._messages.claim(row, row.matter)
        assert isinstance(row.matter, Confirmation)
        return self._confirmations.claim(row, row.matter, limited)

    def complete(self, row: EventRow) -> EventRow:
        """Return a claimed row with its record complete."""
        return (self._messages if isinstance(row.matter, Addressed) else self._confirmations).complete(row)

    def write(self, rows: Sequence[tuple[EventRow, int]]) -> None:
        """Write everything that belongs to rows that have their seq now."""
        messages = [(row, seq) for row, seq in rows if isinstance(row.matter, Addressed)]
        if messages:
            self._messages.write(messages)
        for row, seq in rows:
            if isinstance(row.matter, Confirmation):
                self._confirmations.write(row, row.matter, seq)

    def answer(self, row: EventRow, seq: int, *, is_repeated: bool) -> Accepted:
        """Return the answer of a row of this group; a repeated one is in it twice."""
        if isinstance(row.matter, Addressed):
            return self._messages.answer(row, row.matter, seq, is_repeated=is_repeated)
        return self._confirmations.answer(row, seq, is_repeated=is_repeated)
