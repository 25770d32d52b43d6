/**
 * Sealed content for one reader: NaCl's crypto_box, with a nonce that is derived from the message.
 *
 * Sealing the same message again gives the same bytes, so the relay recognises a repeated message. Content that is
 * sealed with age, for several readers, is not opened here.
 */

import { hsalsa, xsalsa20poly1305 } from "@noble/ciphers/salsa.js";
import { x25519 } from "@noble/curves/ed25519.js";
import { blake3 } from "@noble/hashes/blake3.js";
import { concatBytes, utf8ToBytes } from "@noble/hashes/utils.js";

import { type Key, sealingKeyOf } from "./keys.js";

const NONCE_BYTES = 24;
const NONCE_CONTEXT = utf8ToBytes("posthouse 2026-11-15 nonce of a box that is made repeatably");
const SIGMA = words(utf8ToBytes("expand 32-byte k"));

/** What makes a sealed message the same message; an absent agent is the empty string. */
export interface Occasion {
  mesh: string;
  from: string;
  to: string;
  clientMessageId: string;
}

/** Seal text from a key's owner to a reader. */
export function sealBox(key: Key, reader: string, text: string, occasion: Occasion): string {
  const plaintext = utf8ToBytes(text);
  const { mesh, from, to, clientMessageId } = occasion;
  const identity = utf8ToBytes([mesh, from, to, clientMessageId].join("\0"));
  const parts = [utf8ToBytes(reader), identity, plaintext].flatMap((part) => [lengthOf(part), part]);
  const nonce = blake3(concatBytes(key.sealingSecret, ...parts), { context: NONCE_CONTEXT, dkLen: NONCE_BYTES });
  const box = xsalsa20poly1305(sharedKey(key, reader), nonce).encrypt(plaintext);
  return Buffer.from(concatBytes(nonce, box)).toString("base64");
}

/** Open what the other end of a conversation, or this key's owner, has sealed; throw if it does not open as a whole. */
export function openBox(key: Key, otherEnd: string, content: string): string {
  const bytes = new Uint8Array(Buffer.from(content, "base64"));
  if (Buffer.from(bytes).toString("base64") !== content) throw new TypeError("sealed content is not canonical base64");
  const cipher = xsalsa20poly1305(sharedKey(key, otherEnd), bytes.subarray(0, NONCE_BYTES));
  return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(cipher.decrypt(bytes.subarray(NONCE_BYTES)));
}

/** crypto_box_beforenm: HSalsa20 over the X25519 secret that both ends share. */
function sharedKey(key: Key, otherEnd: string): Uint8Array {
  const shared = words(x25519.getSharedSecret(key.sealingSecret, sealingKeyOf(otherEnd)));
  const out = new Uint32Array(8);
  hsalsa(SIGMA, shared, new Uint32Array(4), out);
  return new Uint8Array(out.buffer);
}

function words(bytes: Uint8Array): Uint32Array {
  return new Uint32Array(bytes.slice().buffer);
}

function lengthOf(bytes: Uint8Array): Uint8Array {
  const length = new Uint8Array(8);
  new DataView(length.buffer).setBigUint64(0, BigInt(bytes.length));
  return length;
}
