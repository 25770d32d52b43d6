/**
 * Events: their canonical bytes, id and signature, as docs/protocol.md defines them.
 *
 * `readEvent` is the only way from JSON to an Event, and it verifies: an Event in memory was signed by its author.
 */

import { blake3 } from "@noble/hashes/blake3.js";
import { bytesToHex, utf8ToBytes } from "@noble/hashes/utils.js";

import type { Key } from "./keys.js";
import { EVENT_VERSION, isSignedBy } from "./signatures.js";

export type Tag = [name: string, ...values: string[]];

export interface Event {
  id: string;
  pubkey: string;
  created_at_ns: bigint;
  kind: number;
  tags: Tag[];
  content: string;
  sig: string;
}

/** What an author decides about an event. */
export interface Draft {
  kind: number;
  content?: string;
  tags?: Tag[];
}

export const KIND = { deletion: 5, message: 1000, confirmation: 1001, authentication: 22242 } as const;

const MEMBERS = ["content", "created_at_ns", "id", "kind", "pubkey", "sig", "tags"];

/** Sign an event. Each call gets a later time, so that two equal drafts are two events. */
export function signEvent(key: Key, { kind, content = "", tags = [] }: Draft): Event {
  const unsigned = { pubkey: key.node, created_at_ns: nextTime(), kind, tags, content };
  const canonical = canonicalBytes(unsigned);
  return { ...unsigned, id: bytesToHex(blake3(canonical)), sig: bytesToHex(key.sign(canonical)) };
}

/** Return the event in a JSON value, or throw if it is malformed or not signed by its author. */
export function readEvent(value: unknown): Event {
  if (!hasEventForm(value)) throw new TypeError("this is not an event: a member is missing, unknown or of another type");
  const canonical = canonicalBytes(value);
  if (bytesToHex(blake3(canonical)) !== value.id) throw new TypeError(`event ${value.id} has another content than its id`);
  if (!isSignedBy(value.sig, canonical, value.pubkey)) throw new TypeError(`event ${value.id} has a wrong signature`);
  return value;
}

/** Return the bytes that id and signature are computed over. */
export function canonicalBytes(event: Omit<Event, "id" | "sig">): Uint8Array {
  const { pubkey, created_at_ns, kind, tags, content } = event;
  if (![pubkey, content, ...tags.flat()].every((text) => text.isWellFormed())) {
    throw new TypeError("a text of an event holds a lone surrogate");
  }
  const text = JSON.stringify;  // writes strings exactly as the protocol asks for
  return utf8ToBytes(`["${EVENT_VERSION}",${text(pubkey)},${created_at_ns},${kind},${text(tags)},${text(content)}]`);
}

/** Return the first value of the first tag of a name. */
export function tagValue(event: Event, name: string): string | undefined {
  return event.tags.find((tag) => tag[0] === name)?.[1];
}

function hasEventForm(value: unknown): value is Event {
  if (typeof value !== "object" || value === null) return false;
  const event = value as Record<string, unknown>;
  return Object.keys(event).sort().join() === MEMBERS.join() &&
    [event.id, event.pubkey, event.content, event.sig].every((each) => typeof each === "string") &&
    typeof event.created_at_ns === "bigint" && Number.isInteger(event.kind) && Array.isArray(event.tags) &&
    event.tags.every((tag) => Array.isArray(tag) && tag.length > 0 && tag.every((each) => typeof each === "string"));
}

let lastTime = 0n;

function nextTime(): bigint {
  const now = BigInt(Date.now()) * 1_000_000n;
  lastTime = now > lastTime ? now : lastTime + 1n;
  return lastTime;
}
