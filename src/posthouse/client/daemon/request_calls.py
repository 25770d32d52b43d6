"""Requests through a daemon: the calls, and the state of one wait for answers; no I/O.

A request is a message that the daemon sends, then a series of calls for its answers. The deadline is fixed when the
request is made, so a repeated call is the same request. Both clients, the blocking and the async one, use `AnswerPoll`,
which also waits out a restart of the daemon.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from posthouse.client.daemon import calls
from posthouse.client.daemon.calls import Call, SendOptions, as_struct
from posthouse.client.daemon.event_stream import LongPoll
from posthouse.client.daemon.local_api import Accepted, Answers
from posthouse.model.clock import Clock, system_clock
from posthouse.model.errors import error
from posthouse.model.message_api import Answer
from posthouse.model.request import AnswerState, new_request, unanswered

#: callback(answer) for each partial answer
OnPartial = Callable[[Answer], None]


class AnswerPoll:
    """One request and the wait for its answers."""

    def __init__(
        self,
        to: str,
        message: str,
        timeout_s: float,
        given: SendOptions,
        *,
        queue: bool,
        on_partial: OnPartial | None,
        clock: Clock | None = None,
    ) -> None:
        clock = clock or system_clock()
        mark = new_request(clock.wall_ns(), timeout_s, queue=queue)
        options: dict[str, Any] = {**given, **mark.to_meta()}
        #: sends the request
        self.send: Call[Accepted] = calls.send(to, message, options)  # type: ignore[arg-type]
        self._to = to
        self._timeout_s = timeout_s
        self._on_partial = on_partial
        self._poll = LongPoll(timeout_s, clock)
        self._position = 0
        self._message_id = ""

    def start(self, accepted: Accepted) -> None:
        """Note the message that the daemon has accepted."""
        self._message_id = accepted.message_id or accepted.broker_message_id or accepted.client_message_id

    def next_call(self) -> Call[Answers]:
        """Return the call for the next answers."""
        wait_s = self._poll.slice_s()
        query = {"after": self._position, "wait_s": wait_s or None}
        path = f"/v1/answers/{quote(self._message_id, safe='')}"
        return Call("GET", path, as_struct(Answers), query, wait_s=wait_s)

    def pause_s(self, failure: Any) -> float:
        """Return the delay before the next call after a failed one, or raise the failure."""
        return self._poll.pause_s(failure)

    def take(self, answers: Answers) -> Answer | None:
        """Process answers; return the final one, or raise an error with the reason why there is none."""
        self._position = answers.position
        for each in answers.items:
            if each.state is AnswerState.FINAL:
                return each
            if each.state is not AnswerState.PARTIAL:
                raise unanswered(each.state, self._to, each.body or "")
            if self._on_partial is not None:
                self._on_partial(each)
        if answers.is_over or self._poll.left_s <= 0:
            raise error("request_timeout", subject=self._to, timeout_s=self._timeout_s)
        return None
