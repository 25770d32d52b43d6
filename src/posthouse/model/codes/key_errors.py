"""Error codes of keys: node ids, key files and private files, signatures, sealing."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec, Exit

KEYS: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "file_not_private",
        500,
        "{path} has mode {mode}: others can reach it",
        "Take the rights of group and others away.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "key_file_missing",
        404,
        "there is no key file {path}",
        "Check the path, or let posthouse make a new key there.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "key_file_exists",
        409,
        "{path} exists already",
        "Choose another file name; a key is never overwritten.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "key_malformed",
        400,
        "{source} holds no key that can be used: {reason}",
        "Give a posthouse key file or an OpenSSH ed25519 private key; restore a damaged one from a copy.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "key_type_unsupported",
        400,
        "{source} holds a key of type {type}; posthouse uses ed25519 only",
        "Make one with `ssh-keygen -t ed25519`, or let posthouse make a key.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "passphrase_needed",
        400,
        "the key in {source} is protected by a passphrase",
        "Give its passphrase, or take it away in a copy with `ssh-keygen -p`.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "passphrase_wrong",
        400,
        "the passphrase does not open the key in {source}",
        "Try again; `ssh-keygen -y -f FILE` tells whether OpenSSH accepts it.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "signature_malformed",
        400,
        "the signature is refused: {reason}",
        "Use 128 lower-case hex digits, or what `ssh-keygen -Y sign -n posthouse-event-v1` prints.",
    ),
    ErrorSpec(
        "signature_invalid",
        400,
        "the signature is not one of {node} over these bytes",
        "Sign the canonical bytes with the key that the event names; the protocol has vectors to compare.",
    ),
    ErrorSpec(
        "sealed_malformed",
        400,
        "the content is not sealed as {enc}: {reason}",
        "Ask the sender to seal it again as the protocol says.",
    ),
    ErrorSpec(
        "sealed_unopened",
        400,
        "the content sealed as {enc} does not open with this key",
        "It was altered on its way or sealed for another reader; ask the sender to seal it for this node id.",
    ),
)
