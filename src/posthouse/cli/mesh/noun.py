"""The verbs of `posthouse mesh`."""

from __future__ import annotations

from posthouse.cli.commands import noun
from posthouse.cli.mesh.access import access
from posthouse.cli.mesh.blocks import blocks
from posthouse.cli.mesh.create import create
from posthouse.cli.mesh.invite import invite
from posthouse.cli.mesh.ls import ls
from posthouse.cli.mesh.members import members
from posthouse.cli.mesh.subscriptions import subscriptions
from posthouse.cli.mesh.topics import topics

app = noun("mesh", "Make meshes, invite others, and say who may do what.")
app.command(create, name="create")
app.command(invite, name="invite")
app.command(ls, name="ls")
app.command(members, name="members")
app.command(access, name="access")
app.command(topics, name="topics")
app.command(subscriptions, name="subscriptions")
app.command(blocks, name="blocks")
