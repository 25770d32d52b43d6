"""Addresses of agents: `claude@laptop` is the agent `claude` on the host `laptop`, a member of the mesh.

An agent is a name on a host; the host has the key and signs for all its agents. The empty agent name means the
default inbox of the host, which a person reads. Nothing is normalized: `Claude` is refused, not converted to lower
case. This module knows names only; the roster knows which hosts and agents exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from posthouse.model.errors import error

AGENT_NAME_MAX_CHARS = 32
AGENTS_MAX = 64  # active agents of one host: as many as its profile lists
#: the agent name of a host's own mail
DEFAULT_INBOX = ""
#: header of the local API that names the agent a request acts for
AGENT_HEADER = "Posthouse-Agent"
#: environment variable that names the agent a program acts for
AGENT_ENV = "POSTHOUSE_AGENT"
#: the form of an agent name
AGENT_NAME = re.compile(rf"[a-z0-9][a-z0-9-]{{0,{AGENT_NAME_MAX_CHARS - 1}}}")


def is_agent_name(text: str) -> bool:
    """Return True if a string has the form of an agent name."""
    return AGENT_NAME.fullmatch(text) is not None


def validate_agent_name(name: str) -> str:
    """Return the agent name unchanged, or raise agent_name_invalid."""
    if type(name) is not str or not is_agent_name(name):
        raise error("agent_name_invalid", name=name)
    return name


class Address(NamedTuple):
    """An agent on a host."""

    #: "" for the default inbox
    agent: str
    #: name, node id or prefix of a member
    host: str

    def __str__(self) -> str:
        return f"{self.agent}@{self.host}" if self.agent else self.host


class Recipient(NamedTuple):
    """A destination after resolution."""

    #: node id, or #topic
    destination: str
    #: agent of a node, "" for its default inbox
    agent: str = DEFAULT_INBOX


def parse_address(text: str) -> Address:
    """Return the parts of `agent@host`, or raise agent_name_invalid or address_invalid."""
    agent, mark, host = text.partition("@")
    if not mark or not host or "@" in host:
        raise error("address_invalid", address=text)
    return Address(validate_agent_name(agent), host)


def near_misses(text: str, known: Iterable[str]) -> list[str]:
    """Return the known addresses that a mistyped one may mean, the closest first."""
    from difflib import get_close_matches  # only for mistakes

    return get_close_matches(text.lower(), sorted(set(known)), n=3, cutoff=0.6)


def numbered_names(name: str) -> Iterator[str]:
    """Yield `claude`, `claude-2`, `claude-3`, ...: the names that programs of one kind try, in this order."""
    yield name
    for number in range(2, AGENTS_MAX + 2):
        suffix = f"-{number}"
        yield name[: AGENT_NAME_MAX_CHARS - len(suffix)] + suffix
