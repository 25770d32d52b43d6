"""`posthouse bench`: measure this machine, side by side with the bare libraries."""

from __future__ import annotations

from posthouse.cli.bench_bus import bus
from posthouse.cli.bench_drain import drain
from posthouse.cli.bench_locks import locks
from posthouse.cli.bench_pipeline import pipeline
from posthouse.cli.bench_relay import relay
from posthouse.cli.bench_send import send
from posthouse.cli.bench_store import store
from posthouse.cli.commands import noun

app = noun("bench", "Measure this machine, side by side with the bare libraries doing the same.")
app.command(store, name="store")
app.command(relay, name="relay")
app.command(drain, name="drain")
app.command(locks, name="locks")
app.command(send, name="send")
app.command(bus, name="bus")
app.command(pipeline, name="pipeline")
