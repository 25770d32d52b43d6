"""`posthouse status` and `posthouse down`: show what posthouse runs on this machine, and stop it.

Both concern only this home: its relay, if it has one, and its daemon with every mesh and agent. `down` stops the
daemon first, so that it can still send its messages to the relay. Accepted messages stay on disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from posthouse.cli.config import find_home
from posthouse.cli.options import DEFAULT_DAEMON, DaemonOptions
from posthouse.cli.output import PLAIN, Output, table
from posthouse.model.address import DEFAULT_INBOX
from posthouse.model.codes.spec import Exit
from posthouse.model.errors import PosthouseError

if TYPE_CHECKING:
    from collections.abc import Iterator


_ANSWER_S = 10.0  # for a daemon of this machine
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400


def status(*, output: Output = PLAIN) -> int:
    """Show what runs on this machine: relay, daemon, meshes, agents and waiting mail.

    The exit code is 3 if no daemon runs.

    For example:

        posthouse status
        posthouse status --json
    """
    from posthouse.cli.up import next_steps

    value: dict[str, Any] = {"home": str(find_home().path), "relay": _read_relay(), "daemon": _read_daemon()}
    output.result(value, table(("what", "state", "where"), _rows(value)))
    steps = next_steps() if _is_complete(value) else ["posthouse up    run a relay and a daemon on this machine"]
    output.note("\n".join(["next:", *(f"  {line}" for line in steps)]))
    return Exit.OK if value["daemon"]["running"] else Exit.UNREACHABLE


def _is_complete(value: dict[str, Any]) -> bool:
    """Return False if `posthouse up` would start something: the daemon, or the relay of this home."""
    relay, daemon = value["relay"], value["daemon"]
    is_reached = any(mesh["state"] == "connected" for mesh in daemon.get("meshes", ()))
    return daemon["running"] and (relay["running"] or relay["url"] is not None or is_reached)


def _read_relay() -> dict[str, Any]:
    """Return the relay of this home, or the one of another machine that this host uses."""
    from posthouse.cli.relay_service import ask_health, read_run, relay_directory
    from posthouse.cli.up import other_relay

    directory = relay_directory(None)
    run = read_run(directory)
    if run is None:
        return {"running": False, "url": other_relay(), "data_dir": str(directory)}
    health = ask_health(run["url"]) if run else "starting or stopping"
    return {"running": True, "health": health, "data_dir": str(directory), **run}


def _read_daemon() -> dict[str, Any]:
    """Return the daemon of this home with its meshes and agents."""
    import msgspec

    from posthouse.cli.daemon_start import daemon_pid

    options = DaemonOptions(agent=DEFAULT_INBOX)
    pid = daemon_pid(options)
    found: dict[str, Any] = {"running": pid is not None, "pid": pid, "directory": str(options.root())}
    if pid is None:
        return found
    try:
        with options.client(_ANSWER_S) as daemon:
            health, agents = daemon.health(), daemon.agents()
            unread = len(daemon.inbox(unread=True, limit=_COUNTED))
    except PosthouseError as failure:
        return found | {"error": failure.code, "reason": str(failure)}
    return found | {
        "uptime_s": health.uptime_s,
        "writable": health.writable,
        "waiting": health.queue_depth + health.inflight,
        "parked_events": health.parked_events,
        "clock_warning": health.clock_warning,
        "unread": unread,
        "meshes": msgspec.to_builtins(health.meshes),
        "agents": [msgspec.to_builtins(agent) for agent in agents if agent.retired_at is None],
    }


_COUNTED = 100  # unread messages of the default inbox are counted up to here; beyond, the exact number does not matter


def _rows(value: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    relay, daemon = value["relay"], value["daemon"]
    if relay["running"]:
        where = f"{relay.get('url', relay['data_dir'])} (pid {relay.get('pid', 'unknown')})"
        yield "relay", "running" if relay["health"] == "ok" else relay["health"], where
    else:
        yield "relay", "not running here", relay["url"] or relay["data_dir"]
    if not daemon["running"]:
        yield "daemon", "not running", daemon["directory"]
        return
    where = f"{daemon['directory']} (pid {daemon['pid']})"
    if "error" in daemon:
        yield "daemon", daemon["error"], f"{where}: {daemon['reason']}"
        return
    yield "daemon", f"running for {_show_age(daemon['uptime_s'])}", where
    yield from _daemon_rows(daemon)


def _daemon_rows(daemon: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for mesh in daemon["meshes"]:
        state = mesh["state"] if mesh["admitted"] or mesh["state"] != "connected" else "not a member"
        name = f"this host is {mesh['member']}" if mesh["member"] else mesh["reason"] or "this host has no name there"
        yield f"mesh {mesh['mesh']}", state, f"{mesh['relay']}; {name}"
    yield "your inbox", _count(daemon["unread"], "unread", _COUNTED), "posthouse inbox --unread"
    for agent in daemon["agents"]:
        yield f"agent {agent['name']}", _agent_state(agent), f"{agent['unread']} unread"
    if daemon["waiting"]:
        yield "outbox", f"{daemon['waiting']} messages wait", "posthouse daemon outbox list"
    if daemon["parked_events"]:
        yield "hooks", f"{daemon['parked_events']} events wait for a command that fails", "posthouse daemon hooks"
    if not daemon["writable"]:
        yield "disk", "the daemon cannot write", "posthouse doctor"
    if daemon["clock_warning"]:
        yield "clock", daemon["clock_warning"], "posthouse doctor"


def _agent_state(agent: dict[str, Any]) -> str:
    if agent["paused"] is not None:
        return f"paused until {agent['paused']['until']}"
    program = agent["program"] or "no program"
    return f"{program}, running" if agent["is_running"] else program


def _count(number: int, word: str, limit: int) -> str:
    return f"{limit} {word} or more" if number >= limit else f"{number} {word}"


def _show_age(seconds: int) -> str:
    for unit, size in (("d", _DAY_S), ("h", _HOUR_S), ("min", _MINUTE_S)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def down(*, output: Output = PLAIN) -> None:
    """Stop the daemon and the relay of this home and wait until they have ended; safe to repeat.

    Accepted messages stay on disk: the daemon sends them after the next `posthouse up`.

    For example:

        posthouse down
        posthouse down --json
    """
    from posthouse.cli.daemon_start import daemon_pid
    from posthouse.cli.relay_service import stop_relay

    daemon = daemon_pid(DEFAULT_DAEMON)
    if daemon is not None:
        from posthouse.cli.detach import stop_process

        stop_process(daemon, slow="daemon_stop_slow")
    relay = stop_relay(None)
    ended = {"daemon": daemon, "relay": relay}
    shown = [f"stopped the {name} (pid {pid})" for name, pid in ended.items() if pid is not None]
    value = {name: {"stopped": pid is not None, "pid": pid} for name, pid in ended.items()}
    output.result(value, "\n".join(shown) or "nothing was running")
