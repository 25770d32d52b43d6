"""Every limit of posthouse in one place, each with its unit and the reason for it.

Configurable limits have their default here and their bounds in posthouse.model.settings. /v1/info announces
the limits marked "wire": if you change one, 1. docs/protocol.md, 2. the vectors of the event tests, 3. the client's
own checks.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB
GB = 1_000_000_000
SECOND_NS = 1_000_000_000
MILLISECOND_NS = 1_000_000
MICROSECOND_NS = 1_000
DAY_S = 86_400
HOUR_S = 3_600
MINUTE_S = 60

# Subjects
SUBJECT_MAX_TOKENS = 16  # bounds the depth of every trie walk
SUBJECT_MAX_BYTES = 255  # fits a file name and an index key
TOPIC_MAX_TOKENS = 12  # leaves 4 for the bridge's mesh.<mesh>.in.topic prefix
TOPIC_MAX_BYTES = 160  # leaves 95 bytes for that prefix with a mesh name of 64
MESH_NAME_MAX_CHARS = 64
MEMBER_NAME_MAX_CHARS = 64

# Values
JSON_MAX_DEPTH = 64  # far above real payloads, far below the interpreter's recursion limit
SAFE_INTEGER_MAX = 2**53 - 1  # what every JSON reader keeps exactly
INT64_MAX = 2**63 - 1  # the range of a store column and of a wire integer

# Budgets, the same on the bus and on the mesh
BUDGET_MAX_HOPS = 20  # ten questions with follow-ups, or a pipeline of eight stages that asks others
BUDGET_CALLS = 100  # above the hops: it bounds a line only where an operator allows more hops
BUDGET_TTL_MS = 7 * DAY_S * 1_000  # as long as the relay queues a message

# Bus
HANDLER_TIMEOUT_S = 15 * 60  # a turn of a coding agent takes minutes
SLOW_AFTER_S = 60  # of a handler's work: the log and `bus top` report it long before the time limit

# Events (wire)
EVENT_MAX_CANONICAL_BYTES = 128 * KIB
EVENT_MAX_TAGS = 200
TAG_VALUE_MAX_BYTES = 8 * KIB
CREATED_AT_MAX_AHEAD_NS = 15 * 60 * SECOND_NS  # tolerates an inaccurate clock, not a wrong date
SIGNATURE_ARMOR_MAX_CHARS = 4 * KIB  # an ssh-ed25519 armor has about 300
KNOWN_IDS_MIN_DAYS = 7
KNOWN_IDS_DAYS = 400  # ids of removed events; longer than dedupe records, so that no message is accepted twice
EVENT_MAX_JSON_BYTES = 1 * MIB  # canonical bytes with every character escaped as \u00xx, and white space

# Requests and streams (wire)
EVENTS_PER_REQUEST = 500
BATCH_MAX_EVENTS = 64  # under one batch signature
QUERY_MAX_LIMIT = 500
QUERY_PAGE_BYTES = 8 * MIB  # of events: 500 of the largest come in several pages
FILTER_MAX_VALUES = 500  # over all lists of one filter: bounds the index entries of a subscription
FILTERS_PER_SUBSCRIPTION = 10
STREAM_BUFFER_EVENTS = 1_000
STREAM_BUFFER_BYTES = 8 * MIB
OUTBOUND_MAX_BYTES = 512 * MIB  # unsent bytes of all connections of a relay: what readers that stall may cost
STREAM_PING_S = 25
CHALLENGE_TTL_S = 60
TOKEN_TTL_S = 3_600

# Rates of the relay, per key
EVENT_RATE_PER_S = 1_000
EVENT_BURST = 5_000
EPHEMERAL_RATE_PER_S = 100
EPHEMERAL_BURST = 500

# Messages (wire)
BODY_MAX_BYTES = 48 * KIB  # before sealing; sealed and base64 it still fits an event
CLIENT_MESSAGE_ID_MAX_BYTES = 255
CONFIRMATION_MAX_IDS = 50
RECEIVE_WINDOW = 50
RECEIVE_WINDOW_MAX = 1_000
DELIVERY_BATCH = 50
QUEUE_MAX = 1_000  # unconfirmed rows per mesh and recipient
CONFIRMATION_RESERVE = 10_000  # ids in addition to the limit of the queue
QUEUE_TTL_S = 7 * DAY_S
QUEUE_SWEEP_S = 300
CONFIRM_TIMEOUT_S = 30
TIMEOUT_ATTEMPTS_MAX = 5  # connections closed without progress before a message is a dead letter
FLAP_ATTEMPTS_MAX = 20  # other disconnects: a reader with a flapping connection must lose nothing
RECORD_RETENTION_DAYS = 365
RECORD_RETENTION_MIN_DAYS = 7

# Pinch (wire)
PINCH_ENVELOPE_MAX_BYTES = 65_536
PINCH_FRAME_MAX_BYTES = 131_072  # hard limit: a frame between the two is read, so that its sender gets an error
PINCH_PING_S = 25
PINCH_PONG_S = 7
PINCH_CHALLENGE_S = 10
PINCH_RATE_PER_S = 1.0  # of one address; Pinch's own default
PINCH_BURST = 60  # thirty short tools in a row, which send at most two envelopes each
PINCH_ATTEMPTS_MAX = 3  # a message that was sent and redelivered twice without any confirm is a dead letter
PINCH_HOST_MAX_CHARS = 255
PINCH_MESSAGE_ID_MAX_BYTES = 255  # a UUID has 36

# Locks (wire)
RESOURCE_MAX_BYTES = 512
LEASE_MIN_MS = 1_000
LEASE_MAX_MS = 600_000
REQUEST_ID_MAX_BYTES = 255
SESSION_MAX_BYTES = 255
TREE_LEVELS_MAX = 32  # bounds the lookups that a name needs for the trees above it
LOCK_RESOURCES_MAX = 64  # of one acquire: bounds the work of one unit
LOCK_WATCHES_MAX = 256  # of one connection
LOCK_WATCHERS_MAX = 65_536  # of all connections: about 20 MB
REQUEST_RECORD_S = DAY_S
WAIT_QUEUE_MAX = 10_000  # per lock
WAITERS_MAX = 65_536  # in all queues: about 60 MB
LOCK_WAIT_MAX_MS = 600_000
LOCK_RATE_PER_S = 5_000  # operations per key: far above one busy client, far below the capacity of the writer
LOCK_BURST = 20_000

BUS_MAX_PAYLOAD_BYTES = 1 * MIB  # a message, not a file: the journal keeps a copy of each
BUS_PAYLOAD_BYTES_MAX = 32 * MIB  # half of the largest mailbox file

# Bus reliability defaults
RATE_WINDOW_S = 60
RATE_MAX_PER_WINDOW = 100
BREAKER_FAILURES = 5
BREAKER_COOLDOWN_MS = 30_000
BREAKER_COOLDOWN_MIN_MS = 1_000
BREAKER_PROBES = 1
BREAKER_SUCCESSES = 2
MAILBOX_MAX = 1_000
PRESSURE_WARNING_AT = 0.8
DEAD_LETTERS_MAX = 10_000
DEAD_LETTERS_MAX_BYTES = 64 * 1024 * 1024

# Retention
JOURNAL_KEEP_DAYS = 30
JOURNAL_MAX_BYTES = 1 * GB
DEAD_LETTER_KEEP_DAYS = 30
INDEX_DONE_KEEP_S = DAY_S
