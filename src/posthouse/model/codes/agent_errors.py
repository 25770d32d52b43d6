"""Error codes for agents: MCP tools and sessions, and the configuration files of coding agents."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec, Exit

_TOOLS: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "tool_arguments_invalid",
        400,
        "the arguments of {tool} are invalid: {reason}",
        "Call the tool again with arguments that match its input schema.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "mcp_token_missing",
        401,
        "requests to this MCP server need its token",
        "Send it as `Authorization: Bearer TOKEN`; the file mcp_token in the daemon's directory holds it.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "mcp_token_wrong",
        401,
        "the token does not belong to this MCP server",
        "Read the file mcp_token in the daemon's directory again.",
        exit=Exit.IDENTITY,
    ),
)
_SESSIONS: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "mcp_session_unknown",
        404,
        "this is not the id of an MCP session of this daemon",
        "Begin a new session with `initialize`.",
    ),
)
_CONFIGURATIONS: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "agent_config_unreadable",
        409,
        "{path} cannot be changed safely: {reason}",
        "Nothing was changed. Repair the file by hand or move it away.",
    ),
    ErrorSpec(
        "agent_config_unsafe",
        409,
        "posthouse does not write to {path}: {reason}",
        "Nothing was changed. If this is the right file, name it with --file.",
    ),
    ErrorSpec(
        "agent_config_changed",
        409,
        "another program has changed {path} in the meantime",
        "Run the command again to see the change it would make now.",
    ),
    ErrorSpec(
        "agent_scope_unsupported",
        400,
        "{tool} has no configuration file for the scope {scope} that other programs may write",
        "Use the tool's own command, or name a file with --file.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "agent_wake_unsupported",
        400,
        "{tool} has no hooks that posthouse can use",
        "Let the daemon run a command when mail arrives: `posthouse agent set NAME --on-mail 'command'`.",
        exit=Exit.USAGE,
    ),
)
AGENTS = _TOOLS + _SESSIONS + _CONFIGURATIONS
