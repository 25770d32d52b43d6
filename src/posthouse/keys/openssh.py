"""OpenSSH keys as node keys: private key files read, public key lines read and written.

The private format is decoded by `cryptography` (with `bcrypt` for passphrases), imported only when a key is
read. Only the clear head of the file is looked at here, to say precisely what is wrong: another key type, a
passphrase missing or wrong. `write_private` makes the text that age wants as an identity; it stays in
memory.
"""

from __future__ import annotations

from posthouse.keys.encoding import decode_base64, encode_base64
from posthouse.keys.identity import NodeKey, node_id, public_key
from posthouse.keys.sshwire import KEY_TYPE, Reader, armor, pack, pack_public, unarmor, unpack_public
from posthouse.model.errors import error

LABEL = "OPENSSH PRIVATE KEY"
BEGIN = "-----BEGIN "
_MAGIC = b"openssh-key-v1\0"
_BLOCK_BYTES = 8  # padding of an unencrypted private section
_FOREIGN = {
    "-----BEGIN RSA PRIVATE KEY": "rsa",
    "-----BEGIN DSA PRIVATE KEY": "dsa",
    "-----BEGIN EC PRIVATE KEY": "ecdsa",
    "-----BEGIN PRIVATE KEY": "pkcs8",
    "-----BEGIN ENCRYPTED PRIVATE KEY": "pkcs8",
    "PuTTY-User-Key-File": "putty",
}


def read_private(text: str, passphrase: str | bytes | None = None, *, source: str = "the text") -> NodeKey:
    """Return the node key of an OpenSSH ed25519 private key; `source` names it in errors."""
    for head, kind in _FOREIGN.items():
        if text.startswith(head):
            raise error("key_type_unsupported", source=source, type=kind)
    cipher, public = _read_head(text, source)
    if cipher == b"none":
        passphrase = None
    elif not passphrase:
        raise error("passphrase_needed", source=source)
    key = NodeKey(_decode_seed(text, passphrase, source))
    if key.public != public:
        raise error("key_malformed", source=source, reason="its private and public halves do not belong together")
    return key


def write_private(key: NodeKey) -> str:
    """Return the key as an unencrypted OpenSSH private key, always the same text for the same key."""
    blob = pack_public(key.public)
    check = key.public[:4]  # any number written twice: it only tells readers that decryption worked
    section = check + check + blob + pack(key.reveal_seed() + key.public, b"")
    section += bytes(range(1, 1 + -len(section) % _BLOCK_BYTES))
    head = _MAGIC + pack(b"none", b"none", b"") + (1).to_bytes(4, "big")
    return armor(LABEL, head + pack(blob, section), 70)


def read_public_line(line: str) -> str:
    """Return the node id of a line `ssh-ed25519 AAAA... [comment]`, as in a .pub file."""
    kind, _, rest = line.strip().partition(" ")
    if kind != KEY_TYPE.decode():
        raise error("key_type_unsupported", source="the public key line", type=kind[:40] or "unknown")
    try:
        return node_id(unpack_public(decode_base64(rest.partition(" ")[0])))
    except ValueError as failure:
        raise error("key_malformed", source="the public key line", reason=str(failure)) from failure


def write_public_line(node: str, comment: str = "") -> str:
    """Return a node id as the public key line that OpenSSH and age take; without a line feed."""
    return f"{KEY_TYPE.decode()} {encode_base64(pack_public(public_key(node)))} {comment}".rstrip()


def _read_head(text: str, source: str) -> tuple[bytes, bytes]:
    try:
        reader = Reader(unarmor(LABEL, text.strip().replace("\r\n", "\n")))
        if reader.take(len(_MAGIC)) != _MAGIC:
            raise ValueError("it is not of the format openssh-key-v1")
        cipher, _kdf, _options = reader.string(), reader.string(), reader.string()
        if reader.number() != 1:
            raise ValueError("it does not hold exactly one key")
        blob = reader.string()
        kind = Reader(blob).string()
        if kind == KEY_TYPE:
            return cipher, unpack_public(blob)
    except ValueError as failure:
        raise error("key_malformed", source=source, reason=str(failure)) from failure
    raise error("key_type_unsupported", source=source, type=kind.decode("ascii", "backslashreplace"))


def _decode_seed(text: str, passphrase: str | bytes | None, source: str) -> bytes:
    from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    secret = passphrase.encode() if isinstance(passphrase, str) else passphrase
    try:
        private = load_ssh_private_key(text.encode(), secret)
    except UnsupportedAlgorithm as failure:
        raise error("key_malformed", source=source, reason=str(failure)) from failure
    except (ValueError, TypeError, InvalidTag) as failure:
        if secret is not None:
            raise error("passphrase_wrong", source=source) from failure
        raise error("key_malformed", source=source, reason="its private section is damaged") from failure
    if not isinstance(private, Ed25519PrivateKey):
        raise error("key_malformed", source=source, reason="its private section holds another key type")
    return private.private_bytes_raw()
