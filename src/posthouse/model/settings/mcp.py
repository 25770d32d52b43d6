"""Settings of the server for agents (Model Context Protocol)."""

from __future__ import annotations

from posthouse.model.settings.setting import Setting

MCP: tuple[Setting, ...] = (
    Setting("mcp.port", int, 7421, "Port of loopback for HTTP; 0 takes a free one.", "", 0, 65_535),
    Setting(
        "mcp.wait_max_s",
        int,
        50,
        "How long one call may wait; many agents give a call up after 60 s.",
        "s",
        1,
        600,
    ),
)
