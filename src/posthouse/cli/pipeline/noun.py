"""The verbs of `posthouse pipeline`; none is loaded before it is used."""

from __future__ import annotations

from importlib.util import find_spec

from posthouse.cli.commands import noun

_VERBS = (
    "run",
    "query",
    "shell",
    "serve",
    "audit",
    "report",
    "whatif",
    "publish",
    "replay",
    "archive",
    "demo",
)

app = noun("pipeline", "The long memory: a lake of the whole history, on Spark; proof, reports, what-if, replay.")
for _verb in _VERBS:
    if find_spec(f"posthouse.cli.pipeline.{_verb}") is not None:
        app.command(f"posthouse.cli.pipeline.{_verb}:{_verb}", name=_verb)
