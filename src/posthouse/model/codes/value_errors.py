"""Error codes of invalid input values: JSON, subjects, ids, envelopes, events, messages, filters."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec

_NODE_HINT = "A node id is `ed25519:` and 64 lower-case hexadecimal digits; other spellings are refused."
_EVENT_HINT = "docs/protocol.md describes every field of an event and its limits."

_JSON: tuple[ErrorSpec, ...] = (
    ErrorSpec("json_invalid", 400, "not valid JSON: {reason}", "Send one JSON value in UTF-8."),
    ErrorSpec(
        "json_duplicate_key",
        400,
        "the key {key!r} occurs twice in one object",
        "Give each key once; two values for one key are ambiguous.",
    ),
    ErrorSpec(
        "json_too_deep",
        400,
        "the JSON is nested deeper than {limit} levels",
        "Flatten the value, or send it as text.",
    ),
    ErrorSpec(
        "value_invalid",
        400,
        "{name} is invalid: {reason}",
        "Correct the value; docs/reference describes each field and its bounds.",
    ),
    ErrorSpec(
        "payload_unserialisable",
        400,
        "the payload cannot be written as JSON: {reason}",
        "Use objects with string keys, lists, strings, finite numbers, booleans and null.",
    ),
    ErrorSpec(
        "not_canonical",
        400,
        "the value has no canonical JSON form: {reason}",
        "Use finite numbers, integers up to 2^53-1 and text without lone surrogates.",
    ),
)

_NAMES: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "subject_invalid",
        400,
        "{subject!r} is not a valid subject: {reason}",
        "Use tokens of letters, digits, `_` and `-`, separated by dots; in patterns also `*` and a last `>`.",
    ),
    ErrorSpec(
        "topic_invalid",
        400,
        "{topic!r} is not a valid topic: {reason}",
        "A topic is a subject without wildcards, of at most 12 tokens and 160 bytes.",
    ),
    ErrorSpec("id_invalid", 400, "{id!r} is not a valid id: {reason}", "Use ids exactly as you received them."),
    ErrorSpec("node_id_invalid", 400, "{node!r} is not a node id: {reason}", _NODE_HINT),
    ErrorSpec(
        "mesh_name_invalid",
        400,
        "{mesh!r} is not a mesh name",
        "A mesh name is one token of at most 64 letters, digits, `_` or `-`.",
    ),
    ErrorSpec(
        "mesh_name_reserved",
        400,
        "no mesh can be called {mesh!r}: the daemon of a home has a file of this name",
        "Choose another name for the mesh.",
    ),
    ErrorSpec(
        "member_name_invalid",
        400,
        "{name!r} is not a member name",
        "A member name is one token of at most 64 letters, digits, `_` or `-`.",
    ),
    ErrorSpec(
        "access_rules_invalid",
        400,
        "the access rules are invalid at {where}: {reason}",
        "Repair the rule file; until then the bus denies everything.",
    ),
    ErrorSpec(
        "reliability_invalid",
        400,
        "the reliability configuration is invalid: {reason}",
        "Repair the file; until then the previous values stay in force.",
    ),
    ErrorSpec(
        "filter_invalid",
        400,
        "the filter is invalid at {field}: {reason}",
        "A filter has ids, authors, kinds, `#<tag>`, mesh, since_ns, until_ns and limit.",
    ),
)

_EVENTS: tuple[ErrorSpec, ...] = (
    ErrorSpec("event_not_object", 400, "an event is a JSON object, not {found}", _EVENT_HINT),
    ErrorSpec("event_field_missing", 400, "the event has no field {field}", _EVENT_HINT),
    ErrorSpec("event_field_unknown", 400, "an event has no field named {field}", _EVENT_HINT),
    ErrorSpec("event_field_type", 400, "{field} has the wrong type: {reason}", _EVENT_HINT),
    ErrorSpec(
        "event_id_form",
        400,
        "the event id is not 64 lower-case hexadecimal digits",
        "The id is the BLAKE3-256 hash of the canonical bytes, in hexadecimal.",
    ),
    ErrorSpec(
        "event_id_mismatch",
        400,
        "the event id is not the hash of its canonical bytes (expected {expected})",
        "Compute the id over the canonical bytes exactly as sent; docs/protocol.md has test vectors.",
    ),
    ErrorSpec("event_pubkey_form", 400, "the event's pubkey is not a node id: {reason}", _NODE_HINT),
    ErrorSpec(
        "event_sig_form",
        400,
        "the signature is neither 128 lower-case hexadecimal digits nor an SSH signature armor nor a batch signature",
        "Sign the canonical bytes with Ed25519, or with `ssh-keygen -Y sign -n posthouse-event-v1`.",
    ),
    ErrorSpec(
        "event_created_at_range",
        400,
        "created_at_ns {created_at_ns} is out of range",
        "Give nanoseconds since 1970, not negative, below 2^63.",
    ),
    ErrorSpec(
        "event_created_at_ahead",
        400,
        "created_at_ns is {ahead_s} s ahead of the relay's clock, more than {limit_s} s",
        "Correct the clock of the sending machine.",
    ),
    ErrorSpec(
        "too_old",
        400,
        "the event was created {days} days ago, more than {limit}",
        "The relay no longer knows whether it had this event; sign a new one, or import a store with such events.",
    ),
    ErrorSpec(
        "event_expired",
        400,
        "the event expired at {expiration} (unix seconds)",
        "Give an expiration in the future, or none.",
    ),
    ErrorSpec(
        "kind_invalid",
        400,
        "kind {kind} is outside the ranges 1-9999, 10000-19999, 20000-29999 and 30000-39999",
        "Choose the kind by how events are kept: normal, replaceable, ephemeral or addressable.",
    ),
    ErrorSpec(
        "kind_reserved",
        400,
        "kind {kind} is reserved for {meaning}",
        "Choose another kind of the same range.",
    ),
    ErrorSpec(
        "kind_not_publishable",
        400,
        "kind {kind} is for authentication and cannot be published",
        "Send it to /v1/auth, /v1/join or as AUTH on the stream.",
    ),
    ErrorSpec("event_too_large", 413, "the event has {bytes} canonical bytes; the limit is {limit}", _EVENT_HINT),
    ErrorSpec("event_text_invalid", 400, "{field} is not valid text: {reason}", _EVENT_HINT),
    ErrorSpec("tags_too_many", 400, "the event has {count} tags; the limit is {limit}", _EVENT_HINT),
    ErrorSpec("tag_empty", 400, "tag {index} has no name", "A tag is a list of strings; the first is its name."),
    ErrorSpec(
        "tag_value_too_long",
        413,
        "tag {index} has a value of {bytes} bytes; the limit is {limit}",
        "Put long data into the content, or into object storage with a blob tag.",
    ),
    ErrorSpec("tag_repeated", 400, "the tag {tag!r} may occur only once", _EVENT_HINT),
    ErrorSpec("tag_malformed", 400, "the tag {tag!r} is invalid: {reason}", _EVENT_HINT),
    ErrorSpec(
        "address_needs_d",
        400,
        "an addressable event needs a d tag",
        'Add ["d", name]; the name may be empty.',
    ),
    ErrorSpec(
        "coordinate_invalid",
        400,
        "{coordinate!r} is not a coordinate: {reason}",
        "A coordinate is kind:pubkey:d, as in 30000:ed25519:<64 hex>:name.",
    ),
    ErrorSpec(
        "message_malformed",
        400,
        "the message is malformed: {reason}",
        "A message has exactly one c tag, one t or p tag, and at most one meta tag, in JCS form.",
    ),
    ErrorSpec(
        "profile_malformed",
        400,
        "the list of agents in the profile is malformed: {reason}",
        "A profile lists at most 64 agents with different names, each with short texts.",
    ),
    ErrorSpec(
        "body_too_large",
        413,
        "the body has {bytes} bytes; the limit is {limit} before sealing",
        "Send large content as a blob reference.",
    ),
    ErrorSpec(
        "confirmation_malformed",
        400,
        "the confirmation is malformed: {reason}",
        "A confirmation has 1 to 50 e tags of one sender and one p tag that names that sender.",
    ),
    ErrorSpec(
        "receipt_malformed",
        400,
        "the receipt is malformed: {reason}",
        "A receipt has one p tag with the sender, and 1 to 50 e tags with id, read or rejected, and milliseconds.",
    ),
    ErrorSpec(
        "deletion_malformed",
        400,
        "the deletion is malformed: {reason}",
        "A deletion names events of its author by e tags (event ids) and a tags (coordinates).",
    ),
)

VALUES: tuple[ErrorSpec, ...] = _JSON + _NAMES + _EVENTS
