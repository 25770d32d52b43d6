"""Error codes of the relay's HTTP and WebSocket interface: requests, authentication, frames, listen addresses."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec, Exit, transient

_REFERENCE = "docs/openapi.json lists every route with its parameters; the relay serves it at /openapi.json."
_STREAM = "docs/protocol.md lists every frame of the stream."
_REQUESTS: tuple[ErrorSpec, ...] = (
    ErrorSpec("http_malformed", 400, "this is not an HTTP/1.1 request: {reason}", "Use an HTTP/1.1 client."),
    ErrorSpec("route_unknown", 404, "there is nothing at {path}", _REFERENCE),
    ErrorSpec("method_not_allowed", 405, "{method} is not allowed here; use {allowed}", _REFERENCE),
    ErrorSpec(
        "path_invalid",
        400,
        "the path is invalid: {reason}",
        "Percent-encode the UTF-8 of each path segment, including slashes inside a segment.",
    ),
    ErrorSpec("parameter_unknown", 400, "there is no parameter {name!r} here", _REFERENCE),
    ErrorSpec("parameter_invalid", 400, "the parameter {name} is invalid: {reason}", _REFERENCE),
    ErrorSpec("body_invalid", 400, "the body is invalid: {reason}", _REFERENCE),
    ErrorSpec(
        "media_type_unsupported",
        415,
        "the media type {media_type} is not supported",
        "Send application/json in UTF-8, without a content-encoding.",
    ),
    ErrorSpec(
        "request_too_large",
        413,
        "the body has more than {limit} bytes",
        "Send fewer events per request, and large content as a blob reference.",
    ),
    ErrorSpec(
        "header_too_large",
        431,
        "the request line or a header is longer than {limit} bytes, or there are too many headers",
        "Send fewer and shorter headers; send long filters on the stream.",
    ),
    ErrorSpec(
        "request_too_slow",
        408,
        "the request did not arrive within {seconds} s",
        "Send the whole request without pauses; check the network.",
    ),
    ErrorSpec(
        "host_refused",
        403,
        "the Host header {host!r} does not name this server",
        "Use localhost, 127.0.0.1 or [::1]; to give a relay another name, add it to relay.hosts.",
    ),
    ErrorSpec(
        "origin_refused",
        403,
        "web pages of {origin!r} may not use this server",
        "Use a program instead of a web page; to let the page use a relay, add its origin to relay.origins.",
    ),
    ErrorSpec("event_unknown", 404, "there is no event {id} that you may read", "Check the id and the mesh."),
    ErrorSpec(
        "address_unknown",
        404,
        "there is no event at {coordinate} that you may read",
        "Check kind, pubkey and d; percent-encode d, or give it as ?d=.",
    ),
    transient(
        "connections_exhausted",
        503,
        "{limit} connections are open, which is the limit",
        "Close idle connections, or retry later.",
    ),
    transient(
        "requests_exhausted",
        503,
        "the relay is already handling {limit} requests, which is its limit",
        "Retry in a moment.",
    ),
    transient("relay_stopping", 503, "the relay is stopping", "Reconnect in a moment."),
    transient("relay_not_ready", 503, "the relay is not ready: {reason}", "Wait until /readyz answers 200."),
)
_AUTHENTICATION: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "authentication_required",
        401,
        "reading requires authentication",
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
        "this relay did not issue the challenge to this key, or the challenge is expired or used",
        "Request a new challenge and use it once, within a minute.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "proof_invalid",
        401,
        "the authentication event is invalid: {reason}",
        "Sign an event of kind 22242 now, with one relay tag and one challenge tag exactly as the relay sent them.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "login_too_slow",
        408,
        "the stream did not authenticate within {seconds} s",
        "Send AUTH with a proof for the challenge of HELLO at once.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "already_authenticated",
        409,
        "this connection is already authenticated as another node",
        "Open one connection per node.",
    ),
)
_FRAMES: tuple[ErrorSpec, ...] = (
    ErrorSpec("upgrade_required", 426, "the stream is a WebSocket: {reason}", "Connect with a WebSocket client."),
    ErrorSpec("frame_malformed", 400, "the frame is malformed: {reason}", _STREAM),
    ErrorSpec("frame_not_text", 400, "binary frames are not supported here", "Send JSON arrays as text frames."),
    ErrorSpec("frame_too_large", 413, "the frame has more than {limit} bytes", "Send shorter lists of commands."),
    ErrorSpec("verb_unknown", 400, "there is no command {verb!r}", _STREAM),
    ErrorSpec("operation_unknown", 400, "the LOCK command supports {operations}", _STREAM),
    ErrorSpec("subscription_id_invalid", 400, "a subscription id is a string of 1 to {limit} characters", _STREAM),
    ErrorSpec(
        "subscription_exists",
        409,
        "the subscription {sub!r} is already open",
        "Close it first, or choose another id.",
    ),
    ErrorSpec("subscription_unknown", 404, "there is no subscription {sub!r}", "Open it with REQ."),
    ErrorSpec(
        "subscriptions_exhausted",
        429,
        "this connection has {limit} subscriptions, which is the limit",
        "Close some, or combine several filters in one subscription.",
    ),
    transient(
        "reader_too_slow",
        429,
        "{events} events ({bytes} bytes) wait for this connection, more than its buffer holds",
        "Subscribe again with the cursor; read faster or use a narrower filter.",
    ),
    transient(
        "reads_exhausted",
        429,
        "{limit} COUNT and LOCK list commands of this connection wait for their answers, which is the limit",
        "Read the answers, then send the next ones.",
    ),
    transient(
        "commands_too_fast",
        429,
        "this connection sends more than {per_s} commands per second",
        "Send fewer commands; a list of events counts as one command.",
    ),
)
_LISTENING: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "trusted_proxies_invalid",
        400,
        "relay.trusted_proxies is invalid: {reason}",
        "Give addresses or networks separated by commas, for example 10.0.0.5,fd00::/8.",
        exit=Exit.USAGE,
    ),
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
        "{listen} is reachable from other machines and has no TLS",
        "Give --tls-cert and --tls-key, or --behind-proxy if a proxy in front terminates TLS; or listen on 127.0.0.1.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "listen_without_admin",
        400,
        "the mesh main is closed on {listen}, and the relay has no administrator who can let nodes in",
        "Give --admin NODE_ID (`posthouse keys show` prints yours).",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "hosts_missing",
        400,
        "a relay behind a proxy needs the host names that clients use",
        "Give --hosts with the public names, for example --hosts relay.example.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "advertise_invalid",
        400,
        "{url!r} is not a URL at which other relays can reach this one",
        "Give http://HOST:PORT, or https://HOST:PORT for a relay with TLS, without a path.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "advertise_without_store",
        400,
        "relay.advertise is set without relay.store: relays share a PostgreSQL database, not a file",
        "Give relay.store too, or leave relay.advertise out.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "hosts_invalid",
        400,
        "{host!r} is not a host name",
        "Give names separated by commas, with a port if it is not 443: relay.example,relay.example:8443.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "origins_invalid",
        400,
        "{origin!r} is not the origin of a web page",
        "Give whole origins separated by commas, for example https://app.example,http://localhost:3000.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "metrics_listen_invalid",
        400,
        "metrics cannot be served at {listen}: {reason}",
        "Give a loopback address and port, or the path of a Unix socket; elsewhere use relay.metrics_token_file.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "metrics_token_invalid",
        400,
        "{path} does not hold a token: {reason}",
        "Write a random token of 16 to 200 letters, digits, - or _ into the file, for example with "
        "`openssl rand -hex 32`.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "listen_failed",
        500,
        "cannot listen on {listen}: {reason}",
        "Choose another port (`--listen`, or POSTHOUSE_RELAY_LISTEN for a relay), or stop the process that uses it.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "tls_invalid",
        400,
        "the TLS certificate or its key cannot be used: {reason}",
        "Give a PEM certificate chain with --tls-cert and its private key with --tls-key.",
        exit=Exit.USAGE,
    ),
)
EDGE: tuple[ErrorSpec, ...] = _REQUESTS + _AUTHENTICATION + _FRAMES + _LISTENING
