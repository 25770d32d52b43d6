"""The table of verbs: the name on the wire and the function that answers it.

A verb is a plain function of the connection and its arguments (JSON bytes); it must not wait, longer work is started
with `connection.start`. What it raises becomes a NOTICE, unless the verb has an answer of its own. EVENT is here for
its malformed forms only: the connection gathers the events of a frame and hands them to the core as one list.
A new verb is a new file and a line here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from posthouse.relay.stream.verbs.auth import auth
from posthouse.relay.stream.verbs.close import close
from posthouse.relay.stream.verbs.confirm import confirm
from posthouse.relay.stream.verbs.count import count
from posthouse.relay.stream.verbs.event import event
from posthouse.relay.stream.verbs.lock import lock
from posthouse.relay.stream.verbs.receive import receive
from posthouse.relay.stream.verbs.reject import reject
from posthouse.relay.stream.verbs.req import req

if TYPE_CHECKING:
    from posthouse.relay.stream.connection import Connection

Verb = Callable[["Connection", Sequence[bytes]], None]

VERBS: dict[str, Verb] = {
    "AUTH": auth,
    "CLOSE": close,
    "CONFIRM": confirm,
    "COUNT": count,
    "EVENT": event,
    "LOCK": lock,
    "RECEIVE": receive,
    "REJECT": reject,
    "REQ": req,
}

#: verbs whose operations have a rate of their own, per key
SELF_METERED = frozenset({"LOCK", "CONFIRM"})
