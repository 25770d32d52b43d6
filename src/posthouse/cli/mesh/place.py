"""The mesh a command is about, as its first argument."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

#: The mesh, given first.
Mesh = Annotated[str, Parameter(help="The mesh.")]
