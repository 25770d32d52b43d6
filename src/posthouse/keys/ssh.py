"""The formats of OpenSSH for ed25519: base64, framing and armor, private keys, public key lines.

Reading is exact: a length beyond the data, trailing bytes, and any other spelling of base64 or armor raise ValueError,
which callers convert to their own error. Base64 has one spelling per value, because signed and compared values need
one. Private keys are decoded by `cryptography` (with `bcrypt` for passphrases), imported only when a key is read; this
module parses only the unencrypted head, to report what is wrong. `write_private_key` makes the identity for age, which
stays in memory.
"""

from __future__ import annotations

import base64
import binascii
from itertools import pairwise

from posthouse.keys.identity import NodeKey, node_id, public_key
from posthouse.model.errors import error


def decode_base64(text: str) -> bytes:
    """Return the bytes of standard, padded base64, or raise ValueError for any other spelling."""
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error) as failure:
        raise ValueError("it is not base64") from failure
    if encode_base64(data) != text:
        raise ValueError("it is not canonical base64")
    return data


def encode_base64(data: bytes) -> str:
    """Return standard, padded base64 on one line."""
    return base64.b64encode(data).decode("ascii")


KEY_TYPE = b"ssh-ed25519"
MAX_COLUMNS = 76  # OpenSSH wraps at 70, PEM writers at 64, MIME writers at 76


def pack(*fields: bytes) -> bytes:
    """Return the fields as concatenated OpenSSH strings."""
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)


def pack_public(public: bytes) -> bytes:
    """Return the blob that OpenSSH uses for an ed25519 public key."""
    return pack(KEY_TYPE, public)


def unpack_public(blob: bytes) -> bytes:
    """Return the ed25519 public key of a blob, or raise ValueError for a key of another type."""
    reader = Reader(blob)
    kind, public = reader.string(), reader.string()
    reader.end()
    if kind != KEY_TYPE:
        raise ValueError(f"its key is of type {kind.decode('ascii', 'backslashreplace')}")
    return public


class Reader:
    """Reads fields from `data`, front to back."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        end = self._at + count
        if end > len(self._data):
            raise ValueError("it ends too early")
        piece = self._data[self._at : end]
        self._at = end
        return piece

    def number(self) -> int:
        """Return the next four bytes as a number."""
        return int.from_bytes(self.take(4), "big")

    def string(self) -> bytes:
        """Return the next string."""
        return self.take(self.number())

    def end(self) -> None:
        """Raise ValueError if bytes are left."""
        if self._at != len(self._data):
            raise ValueError(f"{len(self._data) - self._at} bytes follow its end")


def armor(label: str, data: bytes, columns: int) -> str:
    """Return `data` as lines of base64 between BEGIN and END, with a final line feed."""
    text = encode_base64(data)
    lines = [text[at : at + columns] for at in range(0, len(text), columns)]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""])


def unarmor(label: str, text: str) -> bytes:
    """Return the data of an armored block with nothing around it.

    Lines end in line feeds; all but the last are equally long. The final line feed may be missing, because shells
    strip it.
    """
    first, *lines, last = text.removesuffix("\n").split("\n") if text.count("\n") > 1 else ("", "")
    if (first, last) != (f"-----BEGIN {label}-----", f"-----END {label}-----"):
        raise ValueError(f"it is not one block of {label}")
    widths = [len(line) for line in lines]
    if not widths or max(widths) > MAX_COLUMNS or 0 in widths:
        raise ValueError("its lines are empty or too long")
    if any(here != widths[0] for here, _ in pairwise(widths)) or widths[-1] > widths[0]:
        raise ValueError("its lines differ in length")
    return decode_base64("".join(lines))


PRIVATE_KEY_LABEL = "OPENSSH PRIVATE KEY"
_PRIVATE_KEY_MAGIC = b"openssh-key-v1\0"
_BLOCK_BYTES = 8  # padding of an unencrypted private section
_UNSUPPORTED_HEADS = {
    "-----BEGIN RSA PRIVATE KEY": "rsa",
    "-----BEGIN DSA PRIVATE KEY": "dsa",
    "-----BEGIN EC PRIVATE KEY": "ecdsa",
    "-----BEGIN PRIVATE KEY": "pkcs8",
    "-----BEGIN ENCRYPTED PRIVATE KEY": "pkcs8",
    "PuTTY-User-Key-File": "putty",
}


def read_private_key(text: str, passphrase: str | bytes | None = None, *, source: str = "the text") -> NodeKey:
    """Return the node key of an OpenSSH ed25519 private key; `source` names it in errors."""
    for head, kind in _UNSUPPORTED_HEADS.items():
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


def write_private_key(key: NodeKey) -> str:
    """Return the key as an unencrypted OpenSSH private key; the text is the same every time."""
    blob = pack_public(key.public)
    check = key.public[:4]  # any number, written twice: shows a reader that decryption worked
    section = check + check + blob + pack(key.reveal_seed() + key.public, b"")
    section += bytes(range(1, 1 + -len(section) % _BLOCK_BYTES))
    head = _PRIVATE_KEY_MAGIC + pack(b"none", b"none", b"") + (1).to_bytes(4, "big")
    return armor(PRIVATE_KEY_LABEL, head + pack(blob, section), 70)


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
    """Return a node id as a public key line for OpenSSH and age, without a line feed."""
    return f"{KEY_TYPE.decode()} {encode_base64(pack_public(public_key(node)))} {comment}".rstrip()


def _read_head(text: str, source: str) -> tuple[bytes, bytes]:
    try:
        reader = Reader(unarmor(PRIVATE_KEY_LABEL, text.strip().replace("\r\n", "\n")))
        if reader.take(len(_PRIVATE_KEY_MAGIC)) != _PRIVATE_KEY_MAGIC:
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
