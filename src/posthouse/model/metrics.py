"""Every metric a server shows at /metrics, declared once.

Counters end in _total, durations in _seconds, sizes in _bytes; a gauge that counts things has the plural of
what it counts. If you add one: 1. declare it here, 2. count it where it happens, 3. `make docs`. Labels have few,
known values; never a node or an id, and a mesh only in gauges that show MESHES_SHOWN of them.
"""

from __future__ import annotations

from posthouse.model.metric import Metric

#: Seconds: from an in-memory answer to one that waited for a disk in trouble.
DURATION_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

#: meshes in a gauge by mesh: those with the highest values
MESHES_SHOWN = 10

METRICS: tuple[Metric, ...] = (
    Metric("posthouse_relay_events_accepted_total", "counter", "Events accepted.", ("outcome",)),
    Metric("posthouse_relay_events_refused_total", "counter", "Events refused, by error code.", ("code",)),
    Metric("posthouse_relay_damaged_pages_total", "counter", "Reads and writes of the store that met a damaged page."),
    Metric("posthouse_relay_requests_total", "counter", "HTTP requests answered.", ("route", "status")),
    Metric(
        "posthouse_relay_request_seconds",
        "histogram",
        "Time from the headers of a request to its answer, streams excepted.",
        buckets=DURATION_BUCKETS,
    ),
    Metric("posthouse_relay_requests_running", "gauge", "HTTP requests being answered now."),
    Metric("posthouse_relay_connections", "gauge", "Connections open now, streams included."),
    Metric("posthouse_relay_connections_refused_total", "counter", "Connections refused by a limit.", ("reason",)),
    Metric("posthouse_relay_streams", "gauge", "Streams open now: WebSockets, and event streams over HTTP."),
    Metric("posthouse_relay_streams_closed_total", "counter", "Streams that the relay closed, by reason.", ("reason",)),
    Metric("posthouse_relay_subscriptions", "gauge", "Live subscriptions open now."),
    Metric("posthouse_relay_commands_total", "counter", "Commands received on streams.", ("verb",)),
    Metric("posthouse_relay_live_events_total", "counter", "Committed events offered to live subscriptions."),
    Metric("posthouse_relay_live_matches_total", "counter", "Filters compared with an event after the index lookup."),
    Metric("posthouse_relay_live_deliveries_total", "counter", "Events pushed to live subscriptions."),
    Metric("posthouse_relay_stored_deliveries_total", "counter", "Stored events sent to subscriptions."),
    Metric("posthouse_relay_slow_readers_total", "counter", "Subscriptions closed because their reader was slow."),
    Metric("posthouse_relay_outbound_bytes", "gauge", "Unsent bytes of all connections, with those held for them."),
    Metric(
        "posthouse_relay_readers_dropped_total",
        "counter",
        "Slowest readers dropped to keep unsent bytes within bounds.",
    ),
    Metric("posthouse_relay_reads_waiting", "gauge", "COUNT and LOCK list commands that have no answer yet."),
    Metric("posthouse_relay_followers", "gauge", "Nodes that follow this relay."),
    Metric(
        "posthouse_relay_follower_lag_seconds",
        "gauge",
        "Age of the oldest change that the slowest follower lacks; in a follower, time since the copy was complete.",
    ),
    Metric("posthouse_relay_follower_lag_records", "gauge", "Records that the slowest follower lacks."),
    Metric("posthouse_relay_open_requests", "gauge", "Requests that wait for answers now."),
    Metric("posthouse_relay_webhooks", "gauge", "Active webhooks."),
    Metric(
        "posthouse_relay_webhook_lag_seconds",
        "gauge",
        "Longest time for which an event has waited for the receiver of an active webhook.",
    ),
    Metric("posthouse_relay_webhook_sends_total", "counter", "Requests of webhooks, by outcome.", ("outcome",)),
    Metric("posthouse_relay_authentications_total", "counter", "Authentication attempts.", ("outcome",)),
    Metric(
        "posthouse_relay_lock_operations_total",
        "counter",
        "Operations on locks; the outcome `held` is contention.",
        ("operation", "outcome"),
    ),
    Metric(
        "posthouse_relay_lock_wait_seconds",
        "histogram",
        "How long clients waited for locks that they then got.",
        buckets=DURATION_BUCKETS,
    ),
    Metric("posthouse_relay_lock_take_overs_total", "counter", "Locks granted after the former lease had expired."),
    Metric("posthouse_relay_lock_waiters", "gauge", "Clients waiting for a lock now."),
    Metric("posthouse_relay_lock_waiters_gone_total", "counter", "Lock waiters whose client had disconnected."),
    Metric("posthouse_relay_mailboxes", "gauge", "Reader sessions open now."),
    Metric("posthouse_relay_queued_messages", "gauge", "Unconfirmed messages in all queues."),
    Metric("posthouse_relay_queue_oldest_seconds", "gauge", "Age of the oldest unconfirmed message."),
    Metric(
        "posthouse_relay_mesh_queued_messages",
        "gauge",
        "Unconfirmed messages, in the ten meshes with the most.",
        ("mesh",),
    ),
    Metric(
        "posthouse_relay_mesh_queue_oldest_seconds",
        "gauge",
        "Age of the oldest unconfirmed message, in the ten meshes where it is highest.",
        ("mesh",),
    ),
    Metric("posthouse_relay_messages_in_flight", "gauge", "Messages sent on open connections and not confirmed yet."),
    Metric("posthouse_relay_parked_messages", "gauge", "Messages parked as dead or rejected."),
    Metric("posthouse_relay_waiting_confirmation_ids", "gauge", "Confirmed message ids that wait for their senders."),
    Metric("posthouse_relay_deliveries_total", "counter", "Messages sent to readers.", ("from",)),
    Metric("posthouse_relay_deliveries_closed_total", "counter", "Deliveries that ended, by their state.", ("state",)),
    Metric(
        "posthouse_relay_flush_seconds",
        "histogram",
        "Time from opening a reader session to the end of its backlog.",
        buckets=DURATION_BUCKETS,
    ),
    Metric("posthouse_relay_pinch_connections", "gauge", "Pinch agents connected now."),
    Metric("posthouse_relay_pinch_logins_total", "counter", "Logins of Pinch agents.", ("outcome",)),
    Metric("posthouse_relay_pinch_envelopes_total", "counter", "Pinch envelopes, by outcome.", ("type", "outcome")),
    Metric("posthouse_relay_pinch_refused_total", "counter", "Pinch envelopes refused.", ("type", "code")),
    Metric("posthouse_relay_stored_events", "gauge", "Events with content."),
    Metric("posthouse_relay_stored_event_bytes", "gauge", "Bytes of the JSON of events."),
    Metric("posthouse_relay_meshes_full", "gauge", "Meshes that have reached a limit of events or bytes."),
    Metric(
        "posthouse_relay_events_swept_total",
        "counter",
        "Events whose content was removed because of a limit of their mesh.",
    ),
    Metric("posthouse_relay_sweep_steps_total", "counter", "Transactions of sweepers.", ("sweeper",)),
    Metric(
        "posthouse_relay_sweep_age_seconds",
        "gauge",
        "Time since a sweeper last finished a round, or since its start; only at the relay in charge of sweeping.",
        ("sweeper",),
    ),
    Metric(
        "posthouse_relay_clock_steady",
        "gauge",
        "1 if the clock has run for an hour without a step, else 0: nothing is deleted because of its age meanwhile.",
    ),
    Metric("posthouse_relay_leader", "gauge", "1 if this relay leads, or is alone on its store, else 0."),
    Metric("posthouse_relay_cluster_relays", "gauge", "Relays of the store that are alive, this one included."),
    Metric("posthouse_relay_journal_head", "gauge", "The seq of the newest record of the journal."),
    Metric("posthouse_relay_writer_waiting_items", "gauge", "Items waiting for the next commit."),
    Metric("posthouse_relay_writer_waiting_bytes", "gauge", "Bytes waiting for the next commit."),
    Metric("posthouse_relay_commits_total", "counter", "Batches that the writer committed."),
    Metric(
        "posthouse_relay_commit_seconds",
        "histogram",
        "Time from handing a group of writes to the store to its commit.",
        buckets=DURATION_BUCKETS,
    ),
    Metric(
        "posthouse_relay_event_lag_seconds",
        "histogram",
        "Time from a commit to the last write of its events to subscribers and readers of this relay.",
        buckets=DURATION_BUCKETS,
    ),
    Metric("posthouse_relay_committed_items_total", "counter", "Items that the writer committed."),
    Metric("posthouse_relay_wal_bytes", "gauge", "Size of the write-ahead log."),
    Metric("posthouse_relay_store_bytes", "gauge", "Size of the files of the relay."),
    Metric("posthouse_relay_disk_free_bytes", "gauge", "Free space on the disk of the relay's files."),
)
