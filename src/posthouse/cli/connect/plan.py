"""What connecting would change: the file as it is, as it would be, and the difference between them."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from posthouse.cli.connect.agents import AgentProgram
from posthouse.cli.connect.config_file import ConfigFile, Content
from posthouse.cli.connect.entry import ServerEntry
from posthouse.cli.connect.json_edit import set_entry
from posthouse.cli.connect.toml_edit import set_table
from posthouse.model.errors import error


@dataclass(frozen=True)
class Plan:
    """A change that was not made yet."""

    file: ConfigFile
    before: Content | None
    after: bytes

    @property
    def is_change(self) -> bool:
        return self.before is None or self.before.data != self.after

    @property
    def diff(self) -> str:
        """The change as a patch; nothing when there is none."""
        old = "" if self.before is None else self.before.data.decode()
        source = "/dev/null" if self.before is None else str(self.file.path)
        lines = difflib.unified_diff(
            old.splitlines(), self.after.decode().splitlines(), source, str(self.file.path), lineterm=""
        )
        return "\n".join(lines)


def plan_change(program: AgentProgram, file: ConfigFile, name: str, entry: ServerEntry) -> Plan:
    """Read a file and work out what it should be; nothing is written."""
    before = file.read()
    try:
        text = "" if before is None else before.data.decode()
        return Plan(file, before, _edited(program, text, name, entry).encode())
    except ValueError as fault:
        raise error("agent_config_unreadable", path=str(file.path), reason=str(fault)) from fault


def _edited(program: AgentProgram, text: str, name: str, entry: ServerEntry) -> str:
    wanted = program.entry(entry)
    if program.format == "toml":
        return set_table(text, program.group, name, wanted)
    return set_entry(text, program.group, name, wanted, is_lenient=program.format == "jsonc")
