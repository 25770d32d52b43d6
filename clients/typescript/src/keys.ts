/**
 * Node keys: an Ed25519 key pair, the node id that names it, and the X25519 keys that seal messages.
 *
 * A node id has one spelling, and its point is checked before it is used: otherwise one owner could hold several ids.
 */

import { ed25519 } from "@noble/curves/ed25519.js";
import { sha512 } from "@noble/hashes/sha2.js";
import { bytesToHex, concatBytes, hexToBytes, randomBytes } from "@noble/hashes/utils.js";

const Point = ed25519.Point;
const ORDER = Point.Fn.ORDER;
const NODE_ID = /^ed25519:([0-9a-f]{64})$/;

export class Key {
  /** The node id of this key. */
  readonly node: string;
  /** The secret half for sealing; never leaves this process. */
  readonly sealingSecret: Uint8Array;
  readonly #seed: Uint8Array;

  private constructor(seed: Uint8Array) {
    this.#seed = seed;
    this.node = `ed25519:${bytesToHex(ed25519.getPublicKey(seed))}`;
    this.sealingSecret = ed25519.utils.toMontgomerySecret(seed);
  }

  static generate(): Key {
    return new Key(randomBytes(32));
  }

  /** Make the key of a seed of 64 hexadecimal digits, as `toHex` gave it. */
  static fromHex(seed: string): Key {
    if (!/^[0-9a-f]{64}$/.test(seed)) throw new TypeError("a seed has 64 lower-case hexadecimal digits");
    return new Key(hexToBytes(seed));
  }

  /** The seed, for storing it: a program that has it is this node. */
  toHex(): string {
    return bytesToHex(this.#seed);
  }

  sign(message: Uint8Array): Uint8Array {
    return ed25519.sign(message, this.#seed);
  }
}

/** Return the 32 bytes of a node id, or throw if it is not a valid one. */
export function publicKeyOf(node: string): Uint8Array {
  const bytes = hexToBytes(NODE_ID.exec(node)?.[1] ?? refuse(node, "it is not ed25519: and 64 lower-case digits"));
  const point = decodePoint(bytes) ?? refuse(node, "its bytes are not the canonical encoding of a point");
  if (point.isSmallOrder() || !point.isTorsionFree()) refuse(node, "its point is not of prime order");
  return bytes;
}

/** Return the X25519 public key for sealing messages to a node. */
export function sealingKeyOf(node: string): Uint8Array {
  return ed25519.utils.toMontgomery(publicKeyOf(node));
}

/**
 * Verify an Ed25519 signature as every posthouse node does: S below the group order, R not of small order, and the
 * equation without cofactor. Libraries differ in these points, so the equation is written out here.
 */
export function verifySignature(signature: Uint8Array, message: Uint8Array, node: string): boolean {
  const publicKey = publicKeyOf(node);
  const [r, s] = [signature.subarray(0, 32), littleEndian(signature.subarray(32))];
  if (signature.length !== 64 || s >= ORDER || (decodePoint(r)?.isSmallOrder() ?? true)) return false;
  const k = littleEndian(sha512(concatBytes(r, publicKey, message))) % ORDER;
  const expected = Point.BASE.multiplyUnsafe(s).subtract(Point.fromBytes(publicKey).multiplyUnsafe(k));
  return bytesToHex(expected.toBytes()) === bytesToHex(r);
}

function decodePoint(bytes: Uint8Array) {
  try {
    return Point.fromBytes(bytes);
  } catch {
    return undefined;
  }
}

function littleEndian(bytes: Uint8Array): bigint {
  return BigInt(`0x${bytesToHex(bytes.slice().reverse())}`);
}

function refuse(node: string, reason: string): never {
  throw new TypeError(`${JSON.stringify(node)} is not a node id: ${reason}`);
}
