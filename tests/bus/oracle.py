"""What the mailboxes of a bus must hold, kept in plain lists: the oracle of the mailbox machine.

Only the rules the machine exercises: literal and pattern endpoints, fan-out, room in the mailbox, expiry, failure,
acknowledgement and requeue. Rate limit and breaker are switched off there; they have properties of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from posthouse.model.subjects import is_pattern, matches


@dataclass
class Letter:
    """A message as the oracle knows it."""

    id: str
    payload: int
    subject: str
    expires_ms: int


@dataclass
class Oracle:
    """Mailboxes and dead letters of one bus."""

    room: int
    waiting: dict[str, list[Letter]] = field(default_factory=dict)
    dead: list[Letter] = field(default_factory=list)

    def resolve(self, target: str) -> list[str]:
        """The endpoints a publish reaches, in the order they were registered."""
        literal = [endpoint for endpoint in self.waiting if not is_pattern(endpoint)]
        if is_pattern(target):
            return [endpoint for endpoint in literal if matches(endpoint, target)]
        if target in literal:
            return [target]
        catching = [pattern for pattern in self.waiting if is_pattern(pattern) and matches(target, pattern)]
        return sorted(catching, key=lambda pattern: -pattern.count("."))[:1]

    def publish(self, target: str, payload: int, message_id: str, expires_ms: int) -> tuple[int, int]:
        """Book a publish; return how many mailboxes took it and how many refused."""
        reached = self.resolve(target)
        if not reached:
            self.dead.append(Letter(message_id, payload, target, expires_ms))
            return 0, 0
        taken = 0
        for endpoint in reached:
            if len(self.waiting[endpoint]) < self.room:
                subject = target if is_pattern(endpoint) else endpoint
                self.waiting[endpoint].append(Letter(message_id, payload, subject, expires_ms))
                taken += 1
        return taken, len(reached) - taken

    def expire(self, endpoint: str, now_ms: int) -> None:
        """Bury what is too old; the bus does so when it looks at the mail."""
        self.dead.extend(letter for letter in self.waiting[endpoint] if now_ms > letter.expires_ms)
        self.waiting[endpoint] = [letter for letter in self.waiting[endpoint] if now_ms <= letter.expires_ms]

    def take_all(self, endpoint: str) -> list[Letter]:
        """Hand out everything that waits, oldest first."""
        taken, self.waiting[endpoint] = self.waiting[endpoint], []
        return taken
