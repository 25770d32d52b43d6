/**
 * Messages: writing them as signed events, reading them from this node's queue, and confirming them.
 *
 * The relay delivers at least once. A message that the program holds and has not confirmed is not handed out a second
 * time by the same mailbox, whatever happens to the connection.
 */

import { type Draft, type Event, KIND, readEvent, type Tag, tagValue } from "./event.js";
import { Feed } from "./feed.js";
import { type Key, publicKeyOf } from "./keys.js";
import { openBox, sealBox } from "./sealing.js";
import type { Reader, Stream } from "./stream.js";
import { canonicalJson, type Command, type Problem, RelayError } from "./wire.js";

/** A message to send: to a node or into a topic. */
export type OutgoingMessage = ({ to: string; toAgent?: string } | { topic: string }) & {
  body: string;
  fromAgent?: string;
  /** Id of the message that this one answers. */
  replyTo?: string;
  priority?: "now" | "next" | "low";
  meta?: Record<string, unknown>;
  /** Direct messages are sealed unless this is false. */
  sealed?: boolean;
  /** Sending again under the same id makes no second message; a random one otherwise. */
  clientMessageId?: string;
};

export interface SendResult {
  id: string;
  seq: number;
  duplicate: boolean;
  client_message_id: string;
  not_queued?: { recipient: string; reason: string }[];
}

/** A message from this node's queue. */
export interface Message {
  id: string;
  /** Node id of the sender. */
  from: string;
  fromAgent: string | undefined;
  /** Agent of this node that it is for; undefined for the default inbox. */
  toAgent: string | undefined;
  topic: string | undefined;
  /** The text in the clear; undefined if it could not be opened, then `unopened` says why. */
  body: string | undefined;
  unopened: string | undefined;
  replyTo: string | undefined;
  meta: Record<string, unknown>;
  /** How often the relay has sent it, this time included. */
  attempt: number;
  event: Event;
}

export interface ReceiveOptions {
  /** How many messages may be unconfirmed at a time; 50 unless given. */
  window?: number;
  /** Agents of this node that are online. */
  agents?: string[];
  /** Called when a reader has confirmed messages of this node, with the reader's signed confirmation. */
  onConfirmed?: (confirmation: Event) => void;
  /** Called for messages of topics that the full queue had no room for; read them with `query`, then call `filled`. */
  onGap?: (gap: Gap) => void;
}

export interface Gap {
  topic: string;
  cursor: string;
  last_seq: number;
  messages: number;
}

/** Return the event of a message, before it is signed. */
export function draftMessage(key: Key, mesh: string, message: OutgoingMessage): Draft {
  const { body, fromAgent = "", replyTo, priority, meta, clientMessageId = crypto.randomUUID() } = message;
  const tags: Tag[] = [["mesh", mesh]];
  const toAgent = ("to" in message && message.toAgent) || "";
  let content = body;
  if ("topic" in message) tags.push(["t", message.topic]);
  else {
    publicKeyOf(message.to);
    tags.push(["p", message.to]);
    if (message.sealed !== false) {
      tags.push(["enc", "box"]);
      content = sealBox(key, message.to, body, { mesh, from: fromAgent, to: toAgent, clientMessageId });
    }
  }
  tags.push(["c", clientMessageId]);
  if (fromAgent) tags.push(["from", fromAgent]);
  if (toAgent) tags.push(["to", toAgent]);
  if (replyTo) tags.push(["e", replyTo]);
  if (priority) tags.push(["priority", priority]);
  if (meta && Object.keys(meta).length > 0) tags.push(["meta", canonicalJson(meta)]);
  return { kind: KIND.message, tags, content };
}

/** Return the event that confirms messages of one sender. */
export function draftConfirmation(mesh: string, sender: string, ids: string[]): Draft {
  return { kind: KIND.confirmation, tags: [["mesh", mesh], ["p", sender], ...ids.map((id): Tag => ["e", id])] };
}

export class Mailbox implements Reader {
  readonly messages: Feed<Message>;
  readonly #key: Key;
  readonly #mesh: string;
  readonly #options: ReceiveOptions;
  readonly #instance = crypto.randomUUID();
  readonly #unconfirmed = new Set<string>();
  #isOpening = false;

  /** `onLate` gets requests whose deadline has passed: their senders no longer wait, so `messages` leaves them out. */
  constructor(
    stream: Stream, key: Key, mesh: string, options: ReceiveOptions, readonly onLate: (message: Message) => void,
  ) {
    this.messages = new Feed(() => stream.removeReader("mailbox"));
    this.#key = key;
    this.#mesh = mesh;
    this.#options = options;
    stream.addReader("mailbox", this);
  }

  open(): Command {
    const { window = 50, agents = [] } = this.#options;
    this.#isOpening = true;
    return ["RECEIVE", this.#mesh, { window, agents, instance: this.#instance }];
  }

  take([verb, ...rest]: Command): void {
    if (verb === "ROSTER") this.#isOpening = false;
    else if (verb === "DELIVER") this.#deliver(readEvent(rest[1]), (rest[2] as { attempt: number }).attempt);
    else if (verb === "CONFIRMED") this.#options.onConfirmed?.(readEvent(rest[1]));
    else if (verb === "GAP") (rest[1] as Gap[]).forEach((gap) => this.#options.onGap?.(gap));
    else if (verb === "NOTICE" && this.#isOpening) {
      this.end(new RelayError({ code: rest[0] as string, detail: rest[1] as string } satisfies Problem));
    }
  }

  end(error?: Error): void {
    this.messages.end(error);
  }

  /** Forget messages that were confirmed: if one comes again, it is new. */
  forget(ids: string[]): void {
    ids.forEach((id) => this.#unconfirmed.delete(id));
  }

  #deliver(event: Event, attempt: number): void {
    if (this.#unconfirmed.has(event.id)) return;
    this.#unconfirmed.add(event.id);
    const message = readMessage(this.#key, event, attempt);
    if (isLateRequest(message)) this.onLate(message);
    else this.messages.push(message);
  }
}

function readMessage(key: Key, event: Event, attempt: number): Message {
  const [fromAgent, toAgent, topic] = ["from", "to", "t"].map((name) => tagValue(event, name));
  return {
    id: event.id, from: event.pubkey, fromAgent, toAgent, topic, ...openBody(key, event),
    replyTo: tagValue(event, "e"), meta: readMeta(tagValue(event, "meta")), attempt, event,
  };
}

function isLateRequest({ meta }: Message): boolean {
  return meta.request !== undefined && Date.parse(String(meta.valid_until)) <= Date.now();
}

function openBody(key: Key, event: Event): Pick<Message, "body" | "unopened"> {
  const form = tagValue(event, "enc");
  if (form === undefined) return { body: event.content, unopened: undefined };
  if (form !== "box") return { body: undefined, unopened: `this client does not open ${form}` };
  try {
    return { body: openBox(key, event.pubkey, event.content), unopened: undefined };
  } catch (error) {
    return { body: undefined, unopened: String(error) };
  }
}

function readMeta(text: string | undefined): Record<string, unknown> {
  return text === undefined ? {} : (JSON.parse(text) as Record<string, unknown>);
}
