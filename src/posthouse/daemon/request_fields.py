"""Fields of requests that several routes share, with their forms as the OpenAPI document shows them.

The forms describe; they do not validate. The rules of the model refuse invalid values, because their errors say what is
wrong and what to do; a pattern could only say that the value does not match. A test sends requests that fit the
document, and others, so a form that promises too much or too little is found.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from posthouse.model import limits
from posthouse.model.address import AGENT_NAME
from posthouse.model.message import Priority
from posthouse.model.node import MEMBER_NAME, MESH_NAME, NODE_ID
from posthouse.model.subjects import PATTERN_FORM, TOPIC_FORM


def form(description: str, *patterns: str, **schema: Any) -> Meta:
    """Describe a string that has one of some patterns, or a value with other keywords of JSON Schema."""
    if patterns:
        schema["pattern"] = f"^({'|'.join(patterns)})$"
    return Meta(description=description, extra_json_schema=schema)


_ADDRESS = f"({AGENT_NAME.pattern}@)?({NODE_ID.pattern}|{MEMBER_NAME.pattern})"
_PAGE_END = r"page:[^@,]+@[0-9]{1,18}(,[^@,]+@[0-9]{1,18})*"
_ID = "[0-9A-Za-z]{1,64}"
_PRINTABLE = r"[^\u0000-\u001f\u007f-\u009f]+"
#: nanoseconds since 1970
_NS = "([0-9]{1,18}|[1-8][0-9]{18})"

MeshName = Annotated[str, form("A mesh of this daemon. Absent: the default one.", MESH_NAME.pattern)]
AgentName = Annotated[str, form("An agent of this host.", AGENT_NAME.pattern)]
Topic = Annotated[str, form("A topic; a leading # is removed.", f"#?{TOPIC_FORM}", maxLength=limits.TOPIC_MAX_BYTES)]
TopicPattern = Annotated[
    str, form("A topic, or a pattern with * for one part and > for the rest; a # is removed.", f"#?{PATTERN_FORM}")
]
Peer = Annotated[str, form("An agent (name or name@host), a member, a prefix of a key, or a node id.", _ADDRESS)]
Destination = Annotated[
    str, form("An agent, a member, a prefix of a key, a node id, or #topic.", _ADDRESS, f"#{TOPIC_FORM}")
]
MessageId = Annotated[str, form("A message id.", "[0-9a-f]{64}")]
MessageKey = Annotated[str, form("A message, by its id in the inbox or its message id.", minLength=1)]
RowKey = Annotated[str, form("A row, by its id, its client_message_id or its message id.", minLength=1)]
ClientMessageId = Annotated[
    str, form("The sender's own id of a message.", _PRINTABLE, maxLength=limits.CLIENT_MESSAGE_ID_MAX_BYTES)
]
Moment = Annotated[str, form("A time with a zone, as 2026-01-31T09:30:00Z.", format="date-time")]
MessageText = Annotated[str, form("The text of a message.", maxLength=limits.BODY_MAX_BYTES)]
PriorityName = Annotated[str, form("How urgent a message is.", enum=[each.value for each in Priority])]
InboxBoundary = Annotated[
    str,
    Meta(
        description="An inbox id, a message id, a time, or `next` of the previous page.",
        extra_json_schema={"anyOf": [{"pattern": f"^({_ID}|{_PAGE_END})$"}, {"format": "date-time"}]},
    ),
]
RowBoundary = Annotated[str, form("A row by one of its ids, or `next` of the previous page.", _ID, _PAGE_END)]
NsBoundary = Annotated[str, form("`next` of the previous page.", _NS)]
AbsolutePath = Annotated[str, form("An absolute path.", r"/[^\u0000]*")]
Resource = Annotated[str, form("What is locked: 1 to 512 bytes.", minLength=1, maxLength=limits.RESOURCE_MAX_BYTES)]
LockRequestId = Annotated[
    str, form("The caller's own id of a request.", _PRINTABLE, maxLength=limits.REQUEST_ID_MAX_BYTES)
]
LeaseMs = Annotated[int, form("How long a lease lasts.", minimum=limits.LEASE_MIN_MS, maximum=limits.LEASE_MAX_MS)]
WaitMs = Annotated[int, Meta(description="How long to wait for a lock.", ge=0, le=limits.INT64_MAX)]
LockToken = Annotated[int, Meta(description="The fencing token of a grant.", ge=1, le=limits.INT64_MAX)]
