"""Error codes of keys: key files and other private files, signatures, sealed content, rotation and revocation."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec, Exit

KEYS: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "file_not_private",
        500,
        "{path} has mode {mode}: other users can access it",
        "Remove the permissions of group and others.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "key_file_missing",
        404,
        "there is no key file {path}",
        "Check the path, or create a key there with `posthouse keys new`.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "key_file_exists",
        409,
        "{path} already exists",
        "Choose another file name; a key is never overwritten.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "key_malformed",
        400,
        "{source} holds no usable key: {reason}",
        "Give a posthouse key file or an OpenSSH ed25519 private key; restore a damaged one from a copy.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "key_type_unsupported",
        400,
        "{source} holds a key of type {type}; posthouse uses ed25519 only",
        "Create one with `ssh-keygen -t ed25519` or `posthouse keys new`.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "passphrase_needed",
        400,
        "the key in {source} is protected by a passphrase",
        "Give its passphrase, or remove it from a copy with `ssh-keygen -p`.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "passphrase_wrong",
        400,
        "the passphrase does not open the key in {source}",
        "Try again; `ssh-keygen -y -f FILE` shows if OpenSSH accepts the passphrase.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "signature_malformed",
        400,
        "the signature is malformed: {reason}",
        "Use 128 lower-case hex digits, or the output of `ssh-keygen -Y sign -n posthouse-event-v1`.",
    ),
    ErrorSpec(
        "signature_form_unknown",
        400,
        "signatures of the form {form!r} are unknown to this version",
        "Update posthouse to a version that knows this form; the event may be genuine.",
    ),
    ErrorSpec(
        "signature_invalid",
        400,
        "the signature of {node} does not match these bytes",
        "Sign the canonical bytes with the key of the event's pubkey; docs/protocol.md has test vectors.",
    ),
    ErrorSpec(
        "sealed_malformed",
        400,
        "the content is not sealed as {enc}: {reason}",
        "Ask the sender to seal it again as docs/protocol.md describes.",
    ),
    ErrorSpec(
        "sealed_unopened",
        400,
        "this key does not open the content sealed as {enc}",
        "The content was altered or sealed for another reader; ask the sender to seal it for this node id.",
    ),
    ErrorSpec(
        "rotation_malformed",
        400,
        "the rotation is malformed: {reason}",
        "docs/protocol.md describes the tags of kinds 10001 and 10003; `posthouse keys rotate` writes them.",
    ),
    ErrorSpec(
        "key_rotated",
        403,
        "the key {node} was replaced by {successor}",
        "Use the new key; the old one only opens mail that was sealed for it.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "key_revoked",
        403,
        "an admin of the relay has revoked the key {node}",
        "Make a new key with `posthouse keys new`, and ask an admin to replace the revoked one with it.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "key_not_approved",
        403,
        "the new key {node} waits for the approval of an admin of the mesh {mesh!r}",
        "Ask an admin to run `posthouse mesh rotations {mesh} --approve {node}`; messages wait until then.",
    ),
    ErrorSpec(
        "rotation_not_waiting",
        404,
        "no key of {node} waits for approval in the mesh {mesh!r}",
        "List those that wait with `posthouse mesh rotations {mesh}`.",
    ),
    ErrorSpec(
        "already_rotated",
        409,
        "the key {node} already has another successor: {successor}",
        "The first rotation counts. If it was not yours, ask an admin of the relay to revoke {successor}.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "successor_in_use",
        409,
        "the key {successor} cannot be a successor: {reason}",
        "Use a new key as the successor; `posthouse keys rotate` makes one.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "key_unknown",
        404,
        "this relay does not know the key {node}",
        "Check the node id; only a key that is a member, or that has sent or received messages, can be changed.",
    ),
    ErrorSpec(
        "recovery_refused",
        403,
        "{signer} is not the recovery key of {node}",
        "A key names its recovery key in advance with `posthouse keys recovery`; otherwise ask an admin of the relay.",
        exit=Exit.IDENTITY,
    ),
)
