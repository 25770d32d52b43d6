"""Edwards curve arithmetic from its definition: slow, plain, and independent of the library under test."""

from __future__ import annotations

import hashlib

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
SQRT_MINUS_ONE = pow(2, (P - 1) // 4, P)

Point = tuple[int, int]
NEUTRAL: Point = (0, 1)


def add(a: Point, b: Point) -> Point:
    """Return a + b by the addition law, which is complete on this curve."""
    (x1, y1), (x2, y2) = a, b
    product = D * x1 * x2 * y1 * y2 % P
    x = (x1 * y2 + x2 * y1) * pow(1 + product, -1, P) % P
    y = (y1 * y2 + x1 * x2) * pow(1 - product, -1, P) % P
    return x, y


def multiply(times: int, point: Point) -> Point:
    """Return the point added to itself `times` times."""
    result = NEUTRAL
    while times:
        if times & 1:
            result = add(result, point)
        point, times = add(point, point), times >> 1
    return result


def from_y(y: int) -> Point | None:
    """Return a point with this y, or None when the curve has none."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * SQRT_MINUS_ONE % P
    return (x, y) if x * x % P == square else None


def encode(point: Point, *, sign: int | None = None, lift: bool = False) -> bytes:
    """Return the 32 bytes of a point; `sign` overrides the sign bit, `lift` adds p to y where that fits."""
    x, y = point
    number = (y + P if lift else y) | ((x & 1 if sign is None else sign) << 255)
    return number.to_bytes(32, "little")


def torsion() -> list[Point]:
    """Return the eight points of small order, found by clearing the large part of an arbitrary point."""
    for y in range(2, 100):
        point = from_y(y)
        if point is None:
            continue
        small = multiply(ORDER, point)
        if multiply(4, small) != NEUTRAL:
            return [multiply(times, small) for times in range(8)]
    raise AssertionError("no point of order eight among the first hundred")


def torsion_encodings() -> set[bytes]:
    """Return every 32 bytes that a lax decoder takes for a point of small order."""
    found: set[bytes] = set()
    for x, y in torsion():
        signs = (0, 1) if x == 0 else (x & 1,)
        for sign in signs:
            found.add(encode((x, y), sign=sign))
            if y + P < 2**255:
                found.add(encode((x, y), sign=sign, lift=True))
    return found


def decode(data: bytes) -> Point:
    """Return the point of 32 bytes, as lax as a decoder can be."""
    number = int.from_bytes(data, "little")
    point = from_y((number & ~(1 << 255)) % P)
    if point is None:
        raise ValueError("not on the curve")
    x, y = point
    return (x, y) if x & 1 == number >> 255 else (-x % P, y)


def base_point() -> Point:
    """Return the generator: y = 4/5, x even."""
    x, y = decode((4 * pow(5, -1, P) % P).to_bytes(32, "little"))
    return x, y


def lax_verify(public: bytes, message: bytes, signature: bytes) -> bool:
    """Check the bare Ed25519 equation [S]B = R + [k]A and nothing about the points."""
    r, s = signature[:32], int.from_bytes(signature[32:], "little")
    k = int.from_bytes(hashlib.sha512(r + public + message).digest(), "little") % ORDER
    return multiply(s, base_point()) == add(decode(r), multiply(k, decode(public)))


def sign_oddly(seed: bytes, message: bytes, r: int, small: Point) -> bytes:
    """Sign with a chosen r and a small-order point added to R, as only a dishonest owner of the key would."""
    digest = bytearray(hashlib.sha512(seed).digest()[:32])
    digest[0] &= 248
    digest[31] = digest[31] & 127 | 64
    secret = int.from_bytes(digest, "little")
    public = encode(multiply(secret, base_point()))
    point = encode(add(multiply(r, base_point()), small))
    k = int.from_bytes(hashlib.sha512(point + public + message).digest(), "little") % ORDER
    return point + ((r + k * secret) % ORDER).to_bytes(32, "little")
