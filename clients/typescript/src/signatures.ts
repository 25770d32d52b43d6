/** The three forms of a signature: native, of a batch of events, and by ssh-keygen. */

import { blake3 } from "@noble/hashes/blake3.js";
import { sha256, sha512 } from "@noble/hashes/sha2.js";
import { bytesToHex, concatBytes, hexToBytes, utf8ToBytes } from "@noble/hashes/utils.js";

import { publicKeyOf, verifySignature } from "./keys.js";

/** First element of the canonical bytes, and namespace of signatures by ssh-keygen. */
export const EVENT_VERSION = "posthouse-event-v1";
const ARMOR = /^-----BEGIN SSH SIGNATURE-----\n((?:[A-Za-z0-9+/=]{1,76}\n)+)-----END SSH SIGNATURE-----\n?$/;

/** Return true if a signature, native, of a batch or by ssh-keygen, is the author's. */
export function isSignedBy(sig: string, canonical: Uint8Array, author: string): boolean {
  if (/^[0-9a-f]{128}$/.test(sig)) return verifySignature(hexToBytes(sig), canonical, author);
  if (sig.startsWith("b1.")) return isSignedInBatch(sig.slice(3), blake3(canonical), author);
  const blob = dearmor(sig);
  if (blob === undefined) return false;
  return (["sha512", "sha256"] as const).some((hash) => {
    const head = concatBytes(
      utf8ToBytes("SSHSIG"), Uint8Array.of(0, 0, 0, 1), sshString(sshPair(publicKeyOf(author))), sshString(EVENT_VERSION),
      sshString(""), sshString(hash),
    );
    const signature = blob.subarray(-64);
    const isWhole = bytesToHex(blob) === bytesToHex(concatBytes(head, sshString(sshPair(signature))));
    const digest = (hash === "sha512" ? sha512 : sha256)(canonical);
    const signed = concatBytes(
      utf8ToBytes("SSHSIG"), sshString(EVENT_VERSION), sshString(""), sshString(hash), sshString(digest),
    );
    return isWhole && verifySignature(signature, signed, author);
  });
}

/** Return true if the author signed the root of a tree in which the event has the place that the signature names. */
function isSignedInBatch(encoded: string, id: Uint8Array, author: string): boolean {
  const raw = Buffer.from(encoded, "base64url");
  const [index, size] = raw;
  if (raw.toString("base64url") !== encoded || index === undefined || size === undefined) return false;
  if (size < 2 || size > 64 || index >= size) return false;
  const path = raw.subarray(66);
  let [node, used] = [blake3(concatBytes(Uint8Array.of(0), id)), 0];
  for (let place = index, last = size - 1; last > 0; place >>= 1, last >>= 1) {
    if (place % 2 === 0 && place === last) continue;  // it has no sibling and moves up
    const sibling = path.subarray(used, used + 32);
    used += 32;
    node = blake3(concatBytes(Uint8Array.of(1), ...(place % 2 ? [sibling, node] : [node, sibling])));
  }
  if (path.length !== used) return false;
  const signed = concatBytes(utf8ToBytes("posthouse-batch-1\n"), Uint8Array.of(size), node);
  return verifySignature(raw.subarray(2, 66), signed, author);
}

/** Return the bytes in the armor of ssh-keygen; undefined unless its lines and its base64 are canonical. */
function dearmor(text: string): Uint8Array | undefined {
  const lines = text.length <= 4096 ? ARMOR.exec(text)?.[1]?.trimEnd().split("\n") : undefined;
  if (lines === undefined) return undefined;
  const [width, last] = [lines[0]!.length, lines.at(-1)!.length];
  if (last > width || lines.slice(0, -1).some((line) => line.length !== width)) return undefined;
  const blob = Buffer.from(lines.join(""), "base64");
  return blob.toString("base64") === lines.join("") ? blob : undefined;
}

function sshPair(bytes: Uint8Array): Uint8Array {
  return concatBytes(sshString("ssh-ed25519"), sshString(bytes));
}

function sshString(value: string | Uint8Array): Uint8Array {
  const bytes = typeof value === "string" ? utf8ToBytes(value) : value;
  const length = new Uint8Array(4);
  new DataView(length.buffer).setUint32(0, bytes.length);
  return concatBytes(length, bytes);
}
