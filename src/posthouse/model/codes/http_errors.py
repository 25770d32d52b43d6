"""Error codes of the relay's HTTP and WebSocket interface: requests, authentication, stream frames, listening."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec, Exit, transient

_REFERENCE = "docs/openapi.json lists every route with its parameters; the relay serves it at /openapi.json."
_STREAM = "docs/protocol.md lists every frame of the stream."
_REQUESTS: tuple[ErrorSpec, ...] = (
    ErrorSpec("http_malformed", 400, "this is not an HTTP/1.1 request: {reason}", "Use an HTTP/1.1 client."),
    ErrorSpec("route_unknown", 404, "there is nothing at {path}", _REFERENCE),
    ErrorSpec("method_not_allowed", 405, "{method} is not possible here; {allowed} is", _REFERENCE),
    ErrorSpec(
        "path_invalid",
        400,
        "the path is not valid: {reason}",
        "Percent-encode the UTF-8 of each part of the path, slashes within a part included.",
    ),
    ErrorSpec("parameter_unknown", 400, "there is no parameter {name!r} here", _REFERENCE),
    ErrorSpec("parameter_invalid", 400, "the parameter {name} is not valid: {reason}", _REFERENCE),
    ErrorSpec("body_invalid", 400, "the body is not valid: {reason}", _REFERENCE),
    ErrorSpec(
        "media_type_unsupported",
        415,
        "a body of type {media_type} is not understood",
        "Send application/json in UTF-8, without a content-encoding.",
    ),
    ErrorSpec(
        "request_too_large",
        413,
        "the body has more than {limit} bytes",
        "Send fewer events at once, and large content as a blob reference.",
    ),
    ErrorSpec(
        "header_too_large",
        431,
        "the request line or a header is longer than {limit} bytes, or there are too many headers",
        "Send fewer and shorter headers; long filters can be sent on the stream.",
    ),
    ErrorSpec(
        "request_too_slow",
        408,
        "the request did not arrive within {seconds} s",
        "Send the request at once; check the network.",
    ),
    ErrorSpec("event_unknown", 404, "there is no event {id} that you may read", "Check the id, and the mesh it is in."),
    ErrorSpec(
        "address_unknown",
        404,
        "there is no event at {coordinate} that you may read",
        "Check kind, pubkey and d; percent-encode d, or give it as ?d=.",
    ),
    transient("connections_exhausted", 503, "{limit} connections are open, the limit", "Close idle ones; try later."),
    transient(
        "requests_exhausted",
        503,
        "{limit} requests are being answered, the limit",
        "Retry after a moment.",
    ),
    transient("relay_stopping", 503, "the relay is stopping", "Connect again in a moment."),
    transient("relay_not_ready", 503, "the relay is not ready: {reason}", "Wait until /readyz answers 200."),
)
_AUTHENTICATION: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "authentication_required",
        401,
        "reading needs authentication",
        "Get a token from /v1/auth and send it as `Authorization: Bearer TOKEN`; on the stream send AUTH.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "token_invalid",
        401,
        "the token is unknown to this relay or has expired",
        "Authenticate again: POST /v1/auth/challenge, then POST /v1/auth.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "challenge_invalid",
        401,
        "the challenge was not given to this key by this relay, is too old or was used before",
        "Ask for a new challenge and answer it within a minute, once.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "proof_invalid",
        401,
        "the authentication event is not valid: {reason}",
        "Sign kind 22242 now, with one relay tag and one challenge tag exactly as the relay gave them.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "already_authenticated",
        409,
        "this connection is authenticated as another node already",
        "Open another connection for another node.",
    ),
)
_FRAMES: tuple[ErrorSpec, ...] = (
    ErrorSpec("upgrade_required", 426, "the stream is a WebSocket: {reason}", "Connect with a WebSocket client."),
    ErrorSpec("frame_malformed", 400, "the frame is malformed: {reason}", _STREAM),
    ErrorSpec("frame_not_text", 400, "a binary frame is not understood here", "Send JSON arrays as text frames."),
    ErrorSpec("frame_too_large", 413, "the frame has more than {limit} bytes", "Send shorter lists of commands."),
    ErrorSpec("verb_unknown", 400, "there is no command {verb!r}", _STREAM),
    ErrorSpec("operation_unknown", 400, "LOCK knows {operations}", _STREAM),
    ErrorSpec("subscription_id_invalid", 400, "a subscription id is a text of 1 to {limit} characters", _STREAM),
    ErrorSpec(
        "subscription_exists",
        409,
        "the subscription {sub!r} is open already",
        "Close it first, or choose another id.",
    ),
    ErrorSpec("subscription_unknown", 404, "there is no subscription {sub!r}", "Open it with REQ."),
    ErrorSpec(
        "subscriptions_exhausted",
        429,
        "this connection has {limit} subscriptions, the limit",
        "Close some, or put several filters into one subscription.",
    ),
    transient(
        "reader_too_slow",
        429,
        "{events} events in {bytes} bytes wait for this connection, more than its buffer holds",
        "Subscribe again with the cursor, and read faster or filter more.",
    ),
    transient(
        "commands_too_fast",
        429,
        "this connection sends commands faster than {per_s} a second",
        "Send fewer commands; events may be sent in lists.",
    ),
)
_LISTENING: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "listen_invalid",
        400,
        "{listen!r} is not an address to listen on: {reason}",
        "Give HOST:PORT, for example 127.0.0.1:7420 or [::1]:7420.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "listen_unprotected",
        400,
        "{listen} can be reached from other machines, and there is no TLS",
        "Give --tls-cert and --tls-key, or --behind-proxy when a proxy in front ends TLS; or listen on 127.0.0.1.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "listen_without_admin",
        400,
        "{listen} can be reached from other machines, and nobody administers the relay",
        "Give --admin NODE_ID (`posthouse keys show` prints yours); the mesh main is then closed to others.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "listen_failed",
        500,
        "cannot listen on {listen}: {reason}",
        "Choose another port, or stop the process that uses it.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "tls_invalid",
        400,
        "the certificate or its key cannot be used: {reason}",
        "Give a PEM certificate chain with --tls-cert and its private key with --tls-key.",
        exit=Exit.USAGE,
    ),
)
EDGE: tuple[ErrorSpec, ...] = _REQUESTS + _AUTHENTICATION + _FRAMES + _LISTENING
