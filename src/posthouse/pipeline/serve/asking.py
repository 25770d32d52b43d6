"""Asking the server of a lake, if one runs."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec

from posthouse.model.codes.registry import REGISTRY
from posthouse.model.errors import PosthouseError, error
from posthouse.pipeline.query import Answer
from posthouse.pipeline.serve.wire import SOCKET_NAME, Question, Reply, socket_address

_FIXED = ("type", "title", "status", "code", "detail", "hint")


def ask_server(lake: Path, sql: str, limit: int) -> Answer | None:
    """Return what the lake's server answers; None when no server runs."""
    if not (lake / SOCKET_NAME).is_socket():
        return None
    with socket_address(lake) as address, socket.socket(socket.AF_UNIX) as stream:
        try:
            stream.connect(address)
        except OSError:  # a killed server leaves its socket behind
            return None
        with stream.makefile("rwb") as lines:
            lines.write(msgspec.json.encode(Question(sql, limit)) + b"\n")
            lines.flush()
            line = lines.readline()
    if not line:
        return None
    reply = msgspec.json.decode(line, type=Reply)
    if reply.problem is not None:
        raise _error_of(reply)
    return Answer(reply.columns, reply.rows, reply.is_cut)


def _error_of(reply: Reply) -> PosthouseError:
    problem = reply.problem or {}
    fields = {name: value for name, value in problem.items() if name not in _FIXED}
    code = problem["code"] if problem.get("code") in REGISTRY else "query_failed"
    return error(code, hint=problem.get("hint"), **fields)
