"""The verbs of `posthouse keys`."""

from __future__ import annotations

from posthouse.cli.commands import noun
from posthouse.cli.keys.import_key import import_key
from posthouse.cli.keys.new import new
from posthouse.cli.keys.show import show

app = noun("keys", "Make, show and import the key that is this node's identity.")
app.command(new, name="new")
app.command(show, name="show")
app.command(import_key, name="import")
