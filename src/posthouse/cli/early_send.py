"""The fast path of `posthouse send TO TEXT`, which agents and scripts run for every message.

It passes the message to a listening daemon and prints the same as the full command. It leaves everything else to the
full command: other options, text on stdin, no daemon, a refusal, a note for the user. A message that may have reached
the daemon goes there with its id, so that it is delivered once. This module loads nothing heavier than `json` and
`socket`.
"""

from __future__ import annotations

import json
import os
import sys
import time

from posthouse.client.daemon.bare_http import connect, default_directory, exchange

TYPE_CHECKING = False  # see posthouse.lazy
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ANSWER_S = 30.0  # the same as in DaemonClient
#: option -> field of the request
_OPTIONS = {"--id": "client_message_id", "--reply-to": "reply_to_id", "--priority": "priority", "--agent": ""}
#: fields of the answer for which the full command prints a note
_NOTED = frozenset({"recipient_paused", "topic_unverified"})
_INTERRUPTED = 130


def run(words: Sequence[str]) -> int | Sequence[str]:
    """Send and return the exit code, or return the words for the full command."""
    given = _given(words)
    if given is None or sys.stdout is None:  # a closed stdout: the full command opens another one
        return words
    agent = given.pop("", os.environ.get("POSTHOUSE_AGENT", ""))
    if not (agent.isascii() and agent.isprintable()):  # not valid in a header
        return words
    headers = {"Content-Type": "application/json"} | ({"Posthouse-Agent": agent} if agent else {})
    message_id = given.setdefault("client_message_id", os.urandom(16).hex())
    again = words if "--id" in words else [*words, "--id", message_id]
    try:
        connection = connect(default_directory())
    except OSError:
        return words
    try:
        with connection:
            sent = exchange(connection, "POST /v1/send", headers, json.dumps(given).encode(), _deadline())
        accepted = json.loads(sent.body)
        if sent.status != 202 or _NOTED & accepted.keys() or not _is_member(headers):
            return again
        sys.stdout.write(f"{accepted['client_message_id']}  {accepted['status']}\n")
        sys.stdout.flush()
    except (OSError, ValueError, KeyError):
        return again
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


def _is_member(headers: Mapping[str, str]) -> bool:
    """Return False if the relay does not admit this host; then the full command prints a note."""
    with connect(default_directory()) as connection:
        health = json.loads(exchange(connection, "GET /v1/health", headers, b"", _deadline()).body)
    return bool(health.get("refusal") != "not_member")


def _given(words: Sequence[str]) -> dict[str, str] | None:
    """Return the fields of the request, or None if there is anything but a recipient, a text and known options."""
    fields: dict[str, str] = {}
    plain: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, has_value, value = word.partition("=")
        if not word.startswith("-"):
            plain.append(word)
        elif name in _OPTIONS and (has_value or rest):
            fields[_OPTIONS[name]] = value if has_value else rest.pop(0)
        else:
            return None
    if len(plain) != 2 or not all(word.strip() for word in plain) or not all(fields.values()):
        return None
    return fields | {"to": plain[0], "message": plain[1]}


def _deadline() -> float:
    return time.monotonic() + _ANSWER_S
