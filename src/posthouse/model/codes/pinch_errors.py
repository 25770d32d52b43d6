"""Error codes of the Pinch wire."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec, Exit

PINCH: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "pinch_address_invalid",
        400,
        "{address!r} is not a Pinch address: {reason}",
        "An address is pinch:KEY@HOST; the relay assigns it in AUTH_RESULT and POST /agents/register.",
    ),
    ErrorSpec(
        "pinch_host_invalid",
        400,
        "{host!r} cannot be the host of Pinch addresses",
        "Give the relay's public name: printable ASCII of at most {most} characters, without spaces and @.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "pinch_origins_invalid",
        400,
        "the list of allowed origins is invalid: {reason}",
        "Give origins or hosts separated by commas, for example https://example.com,*.example.org.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "pinch_approval_unsupported",
        400,
        "{variable} asks the relay to approve keys, which it cannot do: any key could connect",
        "Remove the variable to let any agent that proves its key connect, or keep the Pinch relay.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "pinch_claim_needless",
        404,
        "this relay approves no keys, so there is nothing to claim",
        "Connect the agent: any agent that proves its key at login may use this relay.",
    ),
    ErrorSpec(
        "pinch_key_invalid",
        400,
        "the public key is invalid: {reason}",
        "Send the 32 bytes of an Ed25519 public key as standard base64.",
    ),
    ErrorSpec(
        "pinch_envelope_too_large",
        413,
        "message too large: {size} bytes, at most {limit}",
        "Send a smaller envelope.",
    ),
    ErrorSpec(
        "pinch_sender_spoofed",
        403,
        "from_address is not the address of this connection",
        "Send as the address that AUTH_RESULT assigned.",
    ),
    ErrorSpec(
        "pinch_address_unknown",
        404,
        "unknown address",
        "Check the address: its checksum must be right, and it must end with this relay's host name.",
    ),
    ErrorSpec(
        "pinch_message_id_invalid",
        400,
        "message_id is not valid UTF-8 or not an id",
        "Give every message its own id, such as a UUID.",
    ),
    ErrorSpec(
        "pinch_not_ready",
        503,
        "the mesh {mesh} of this relay holds members or messages that are not from the Pinch wire",
        "The name is reserved for the Pinch wire; move the contents of the mesh to another mesh.",
        exit=Exit.BROKEN,
    ),
    ErrorSpec(
        "mesh_reserved",
        403,
        "the mesh {mesh} is reserved for the Pinch wire",
        "Choose another name.",
    ),
)
