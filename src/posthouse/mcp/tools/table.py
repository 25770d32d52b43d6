"""The list of tools. At most eight, together below 1,500 tokens of definition; a test counts both."""

from __future__ import annotations

from posthouse.mcp.tools.history import HISTORY
from posthouse.mcp.tools.inbox import INBOX
from posthouse.mcp.tools.lock import LOCK
from posthouse.mcp.tools.read import READ
from posthouse.mcp.tools.send import SEND
from posthouse.mcp.tools.spec import ToolSpec
from posthouse.mcp.tools.status import STATUS
from posthouse.mcp.tools.wait import WAIT
from posthouse.mcp.tools.who import WHO

#: by name; the order is fixed, so that clients can keep the list in their caches
TOOLS: dict[str, ToolSpec] = {tool.name: tool for tool in (SEND, INBOX, WAIT, READ, WHO, HISTORY, LOCK, STATUS)}
