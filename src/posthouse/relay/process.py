"""Run a relay as a foreground process.

`server_settings` turns resolved settings (file, environment, flags) into ServerSettings; `run_relay` serves until
SIGTERM or SIGINT, notifies the service manager, and reloads on SIGHUP. A setting of the relay that is not passed on
here does nothing.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from posthouse.http.caller_address import AddressRule, parse_networks
from posthouse.http.server import freeze_heap, new_event_loop
from posthouse.keys import public_key
from posthouse.model.errors import PosthouseError, error
from posthouse.model.node import validate_mesh_name
from posthouse.model.pinch import validate_host
from posthouse.model.rate import Rate
from posthouse.model.settings_sources import Resolved
from posthouse.postgresql.store_url import validate_store_url
from posthouse.relay import listen
from posthouse.relay.messages.settings import ConnectionPolicy, DeliverySettings
from posthouse.relay.pinch.pinch_settings import NO_ORIGINS, PinchSettings, parse_patterns
from posthouse.relay.reload import Certificates, LoadSettings, Reloader
from posthouse.relay.replication.followers import FollowSettings
from posthouse.relay.replication.mirroring import ALL_MESHES, MirrorRights
from posthouse.relay.server import RelayServer, ServerSettings
from posthouse.relay.webhooks.sending import SendingSettings
from posthouse.relay.wire.edge_limits import DEFAULT_LIMITS, EdgeLimits
from posthouse.service_manager import READY, STOPPING, feed_watchdog, notify

log = structlog.get_logger(__name__)
_DESCRIPTORS_WANTED = 65_536  # where the system sets no limit


def server_settings(
    values: Mapping[str, Resolved], default_admin: str | None = None, *, is_new: bool = False
) -> ServerSettings:
    """Return the settings of a server; `default_admin` is its administrator if the settings name none."""
    given: dict[str, Any] = {
        name.removeprefix("relay."): each.value for name, each in values.items() if name.startswith("relay.")
    }
    admin = given["admin"] or default_admin
    if admin is not None:
        public_key(admin)
    return ServerSettings(
        listen=listen.parse_listen(given["listen"]),
        data_dir=Path(given["data_dir"]).expanduser().absolute(),
        is_new=is_new,
        store=None if given["store"] is None else validate_store_url(given["store"]),
        advertise=_advertise(given),
        high_water=_path(given["high_water"]),
        protection=listen.Protection(
            tls_cert=_path(given["tls_cert"]),
            tls_key=_path(given["tls_key"]),
            is_behind_proxy=given["behind_proxy"],
            has_admin=admin is not None,
            hosts=listen.parse_hosts(given["hosts"]),
            origins=listen.parse_origins(given["origins"]),
            allows_open_main=given["main_open"],
        ),
        admins=() if admin is None else (admin,),
        event_rate=Rate(given["event_rate"], given["event_burst"]),
        ephemeral_rate=Rate(given["ephemeral_rate"], given["ephemeral_burst"]),
        limits=_limits(given),
        addresses=_addresses(given),
        deliveries=_deliveries(given),
        known_ids_days=given["known_ids_days"],
        wait_queue_max=given["wait_queue_max"],
        writer_max_items=given["writer_max_items"],
        writer_max_bytes=given["writer_max_bytes"],
        follow=FollowSettings(_nodes(given["followers"]), given["follow_absent_s"]),
        follow_max_bytes=given["follow_max_bytes"],
        mirrors=_mirrors(given["mirrors"]),
        sending=_sending(given),
        webhooks_per_mesh=given["webhooks_per_mesh"],
        pinch=_pinch(given),
        metrics_listen=listen.parse_metrics_listen(given["metrics_listen"]),
        metrics_token_file=_path(given["metrics_token_file"]),
        otlp_url=given["otlp_url"],
    )


def _nodes(text: str | None) -> frozenset[str]:
    """Return the node ids in a list separated by commas; raise if one of them is not a node id."""
    nodes = frozenset() if text is None else frozenset(part.strip() for part in text.split(",") if part.strip())
    for node in nodes:
        public_key(node)
    return nodes


def _mirrors(text: str | None) -> MirrorRights:
    """Return the rights in a list of NODE or NODE/MESH, separated by commas."""
    pairs: set[tuple[str, str]] = set()
    for part in [] if text is None else text.split(","):
        node, _slash, mesh = part.strip().partition("/")
        public_key(node)
        pairs.add((node, validate_mesh_name(mesh) if mesh else ALL_MESHES))
    return MirrorRights(frozenset(pairs))


def _limits(given: Mapping[str, Any]) -> EdgeLimits:
    return replace(
        DEFAULT_LIMITS,
        buffer_events=given["stream_buffer_events"],
        buffer_bytes=given["stream_buffer_bytes"],
        outbound_bytes=given["outbound_max_bytes"],
        ping_s=given["ping_s"],
        connections=given["connections_max"],
        connections_per_address=given["connections_per_address"],
        connections_per_node=given["connections_per_node"],
    )


def _addresses(given: Mapping[str, Any]) -> AddressRule:
    trusted = given["trusted_proxies"]
    if trusted is not None:
        return AddressRule(parse_networks(trusted))
    return AddressRule(is_counted=not given["behind_proxy"])  # all clients share the address of an unknown proxy


def _deliveries(given: Mapping[str, Any]) -> DeliverySettings:
    return DeliverySettings(
        queue_max=given["queue_max"],
        queue_ttl_s=given["queue_ttl_s"],
        confirm_timeout_s=given["confirm_timeout_s"],
        policy=ConnectionPolicy(given["connection_policy"]),
        record_retention_days=None if given["records_permanent"] else given["record_retention_days"],
    )


def _sending(given: Mapping[str, Any]) -> SendingSettings:
    networks = given["webhook_networks"]
    try:
        listed = () if networks is None else parse_networks(networks)
    except PosthouseError as fault:
        raise error("webhook_networks_invalid", reason=fault.fields["reason"]) from fault
    return SendingSettings(listed, given["webhook_timeout_s"], given["smtp_url"], given["smtp_from"])


#: with these a Pinch relay lets only approved keys connect
_APPROVAL_VARIABLES = ("PINCH_TURNSTILE_SECRET_KEY", "PINCH_TURNSTILE_SITE_KEY")


def _pinch(given: Mapping[str, Any]) -> PinchSettings | None:
    origins = NO_ORIGINS if given["pinch_origins"] is None else parse_patterns(given["pinch_origins"])
    if given["pinch_host"] is None:
        return None
    for variable in _APPROVAL_VARIABLES:
        if os.environ.get(variable):
            raise error("pinch_approval_unsupported", variable=variable)
    return PinchSettings(
        host=validate_host(given["pinch_host"]),
        rate_per_s=given["pinch_rate"],
        burst=given["pinch_burst"],
        origins=origins,
    )


def _advertise(given: Mapping[str, Any]) -> str | None:
    if given["advertise"] is not None and given["store"] is None:
        raise error("advertise_without_store")
    return None if given["advertise"] is None else listen.validate_peer_url(given["advertise"])


def _path(text: Any) -> Path | None:
    return None if text is None else Path(text).expanduser()


def run_relay(
    settings: ServerSettings, on_ready: Callable[[RelayServer], None], load: LoadSettings | None = None
) -> None:
    """Run a relay in the foreground until SIGTERM or SIGINT; call `on_ready` once it accepts requests.

    With `load`, SIGHUP reads the settings again.
    """
    settings = replace(settings, limits=fit_descriptors(settings.limits, raise_descriptor_limit()))
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(settings, on_ready, load))


OWN_DESCRIPTORS = 128  # of the store, its readers, the log, the listening sockets, and strangers beyond the members


def raise_descriptor_limit() -> int:
    """Raise the number of descriptors that this process may open to the most it can have, and return that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = max(soft, _DESCRIPTORS_WANTED)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    except (OSError, ValueError) as failure:  # macOS has another limit below the hard one
        log.warning("descriptors_not_raised", descriptors=soft, reason=str(failure))
        return soft
    return hard


def fit_descriptors(limits: EdgeLimits, descriptors: int) -> EdgeLimits:
    """Bound the connections by the descriptors, so that one connection too many gets an answer instead of silence."""
    connections = max(1, descriptors - OWN_DESCRIPTORS)
    if connections >= limits.connections:
        return limits
    log.warning("descriptors_few", descriptors=descriptors, connections=connections, wanted=limits.connections)
    return replace(limits, connections=connections)


async def _serve(settings: ServerSettings, on_ready: Callable[[RelayServer], None], load: LoadSettings | None) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    server = RelayServer(settings)
    await server.start()
    tasks = [loop.create_task(each) for each in _background_work(server, load)]
    try:
        freeze_heap()
        on_ready(server)
        notify(READY)
        await ended.wait()
    finally:
        notify(STOPPING)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.stop()


def _background_work(server: RelayServer, load: LoadSettings | None) -> Iterator[Coroutine[Any, Any, None]]:
    """Yield the tasks that run alongside the server, the watchdog and the certificate watch; prepare for SIGHUP."""
    yield feed_watchdog(lambda: server.context.engine.store.state != "failed")
    certificates = None if server.tls is None else Certificates(server.tls, server.settings.protection)
    if certificates is not None:
        yield certificates.watch()
    if load is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, Reloader(server, load, certificates).reload)
