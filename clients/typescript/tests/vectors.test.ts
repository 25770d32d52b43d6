/** The vectors of docs/protocol.md: a client that derives them speaks the protocol. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { bytesToHex } from "@noble/hashes/utils.js";

import { canonicalBytes, readEvent, type Tag } from "../src/event.js";
import { Key, publicKeyOf, sealingKeyOf } from "../src/keys.js";
import { openBox, sealBox } from "../src/sealing.js";
import { isSignedBy } from "../src/signatures.js";
import { canonicalJson, parseJson } from "../src/wire.js";

interface Identity {
  keys: { name: string; seed: string; node: string; x25519_secret: string; x25519_public: string }[];
  refused: { node: string; reason: string }[];
}

interface Events {
  events: {
    name: string; pubkey: string; created_at_ns: bigint; kind: number; tags: Tag[]; content: string;
    canonical_hex: string; id: string; sig: string; key: string; sshsig_sha256?: string; sshsig_sha512?: string;
  }[];
  refused_signatures_of_plain: { reason: string; sig: string }[];
}

interface Sealing {
  box: { sender: string; reader: string; plaintext: string; content: string }[];
  repeatable: {
    sender: string; reader: string; mesh: string; from: string; to: string; client_message_id: string;
    plaintext: string; content: string;
  }[];
}

interface Batch {
  pubkey: string;
  valid: { size: bigint; signatures: { canonical: string; sig: string }[] }[];
  refused: { why: string; canonical: string; sig: string }[];
}

function vectors<T>(name: string): T {
  return parseJson(readFileSync(new URL(`../../../../docs/vectors/${name}.json`, import.meta.url), "utf8")) as T;
}

const identity = vectors<Identity>("identity");
const events = vectors<Events>("events");
const keys = new Map(identity.keys.map((each) => [each.name, Key.fromHex(each.seed)]));

test("a seed has the node id and the X25519 keys of the vectors", () => {
  for (const each of identity.keys) {
    const key = keys.get(each.name)!;
    assert.equal(key.node, each.node);
    assert.equal(bytesToHex(key.sealingSecret), each.x25519_secret);
    assert.equal(bytesToHex(sealingKeyOf(each.node)), each.x25519_public);
  }
});

test("unsound node ids are refused", () => {
  for (const { node, reason } of identity.refused) assert.throws(() => publicKeyOf(node), TypeError, reason);
});

test("canonical bytes, ids and signatures are those of the vectors", () => {
  for (const { name, key, canonical_hex, sshsig_sha256, sshsig_sha512, ...event } of events.events) {
    const canonical = canonicalBytes(event);
    assert.equal(bytesToHex(canonical), canonical_hex, name);
    assert.equal(bytesToHex(keys.get(key)!.sign(canonical)), event.sig, name);
    assert.equal(readEvent(event), event, name);
    for (const sig of [sshsig_sha256, sshsig_sha512]) {
      if (sig !== undefined) assert.equal(readEvent({ ...event, sig }).sig, sig);
    }
  }
});

test("wrong signatures are refused", () => {
  const plain = events.events.find((each) => each.name === "plain")!;
  for (const { reason, sig } of events.refused_signatures_of_plain) {
    assert.equal(isSignedBy(sig, canonicalBytes(plain), plain.pubkey), false, reason);
  }
});

test("an event that was changed, or has another member, is refused", () => {
  const { id, pubkey, created_at_ns, kind, tags, content, sig } = events.events[0]!;
  const event = { id, pubkey, created_at_ns, kind, tags, content, sig };
  assert.throws(() => readEvent({ ...event, content: "another" }), /another content/);
  assert.throws(() => readEvent({ ...event, seq: 1 }), /unknown/);
  assert.throws(() => canonicalBytes({ ...event, content: "\ud800" }), /surrogate/);
});

test("boxes open for both ends, and sealing again gives the same bytes", () => {
  const { box, repeatable } = vectors<Sealing>("sealing");
  for (const { sender, reader, plaintext, content } of [...box, ...repeatable]) {
    const [from, to] = [keys.get(sender)!, keys.get(reader)!];
    assert.equal(openBox(to, from.node, content), plaintext);
    assert.equal(openBox(from, to.node, content), plaintext);
    assert.throws(() => openBox(to, from.node, content.replace(/.{4}$/, "AAA=")));
  }
  for (const { sender, reader, plaintext, content, client_message_id, ...rest } of repeatable) {
    const occasion = { ...rest, clientMessageId: client_message_id };
    assert.equal(sealBox(keys.get(sender)!, keys.get(reader)!.node, plaintext, occasion), content);
  }
});

test("nanoseconds are exact, and text that looks like them is left alone", () => {
  const text = '{"created_at_ns": 9223372036854775807, "content": "\\"at_ns\\":12345678901234567890", "n": 1}';
  const value = { created_at_ns: 9223372036854775807n, content: '"at_ns":12345678901234567890', n: 1 };
  assert.deepEqual(parseJson(text), value);
});

test("canonical JSON sorts members that look like numbers as text", () => {
  assert.equal(canonicalJson({ b: [1, { z: null, a: true }], 10: 1, 9: 2 }), '{"10":1,"9":2,"b":[1,{"a":true,"z":null}]}');
});

test("batch signatures of the vectors prove each event alone, and forged ones do not", () => {
  const batch = vectors<Batch>("batch");
  const isValid = (each: { canonical: string; sig: string }): boolean =>
    isSignedBy(each.sig, new TextEncoder().encode(each.canonical), batch.pubkey);
  for (const { signatures } of batch.valid) assert.ok(signatures.length >= 2 && signatures.every(isValid));
  for (const each of batch.refused) assert.equal(isValid(each), false, each.why);
});
