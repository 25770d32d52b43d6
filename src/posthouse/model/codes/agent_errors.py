"""Error codes that agents meet: MCP tools, and the configuration files of coding agents."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec, Exit

_TOOLS: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "tool_arguments_invalid",
        400,
        "the arguments of {tool} are not valid: {reason}",
        "Call it again with arguments as its input schema says.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "mcp_token_missing",
        401,
        "requests to this MCP server need its token",
        "Send it as `Authorization: Bearer TOKEN`; it is in mcp_token in the daemon's directory.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "mcp_token_wrong",
        401,
        "this is not the token of this MCP server",
        "Read mcp_token in the daemon's directory again.",
        exit=Exit.IDENTITY,
    ),
)
_CONFIGURATIONS: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "agent_config_unreadable",
        409,
        "{path} cannot be changed safely: {reason}",
        "Repair the file by hand, or move it away; nothing was changed.",
    ),
    ErrorSpec(
        "agent_config_unsafe",
        409,
        "{path} is not written to: {reason}",
        "Name the file itself with --file if it is the right one; nothing was changed.",
    ),
    ErrorSpec(
        "agent_config_changed",
        409,
        "{path} was changed by another program meanwhile",
        "Run the command again to see what it would change now.",
    ),
    ErrorSpec(
        "agent_scope_unsupported",
        400,
        "{tool} has no file for the scope {scope} that another program should write",
        "Use the command of the tool itself, or name a file with --file.",
        exit=Exit.USAGE,
    ),
)
AGENTS = _TOOLS + _CONFIGURATIONS
