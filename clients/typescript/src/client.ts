/** The client of a relay: one connection, one key, one mesh. */

import { type Draft, type Event, signEvent } from "./event.js";
import type { Key } from "./keys.js";
import { Lock, type LockOptions } from "./lock.js";
import {
  draftConfirmation, draftMessage, type Gap, Mailbox, type Message, type OutgoingMessage, type ReceiveOptions,
  type SendResult,
} from "./mailbox.js";
import { Stream } from "./stream.js";
import { type Filter, type StoredEvent, type SubscribeOptions, Subscription } from "./subscription.js";
import { RelayError } from "./wire.js";

export interface ClientOptions {
  /** The mesh to act in; `main` unless given. */
  mesh?: string;
  /** The relay's node id: a relay with another key is refused. */
  relay?: string;
}

export interface PublishResult {
  id: string;
  /** Place in the relay's journal; null if the event is ephemeral. */
  seq: number | null;
  duplicate: boolean;
  /** Whether a replaceable or addressable event is the current one. */
  current?: boolean;
}

export interface Confirmed {
  confirmed: string[];
  ignored: { id: string; reason: string }[];
}

/** A confirmation names at most this many messages. */
const CONFIRMATION_MAX = 50;

export class Client {
  readonly key: Key;
  readonly mesh: string;
  readonly #stream: Stream;
  readonly #session = crypto.randomUUID();
  #mailbox: Mailbox | undefined;

  private constructor(url: string, key: Key, { mesh = "main", relay }: ClientOptions) {
    this.key = key;
    this.mesh = mesh;
    this.#stream = new Stream(url, key, relay);
  }

  /** Connect to a relay at http://HOST:PORT or https://HOST:PORT and log in; after later breaks it reconnects. */
  static async connect(url: string, key: Key, options: ClientOptions = {}): Promise<Client> {
    const client = new Client(url, key, options);
    await client.#stream.open();
    return client;
  }

  /** Sign an event in this client's mesh and publish it; the event is stored once this returns. */
  async publish({ tags = [], ...draft }: Draft): Promise<PublishResult> {
    return (await this.#send({ ...draft, tags: [["mesh", this.mesh], ...tags] })) as PublishResult;
  }

  /** Return the stored events that match, oldest first; with a limit, the newest of them. */
  async query(filter: Filter, options: SubscribeOptions = {}): Promise<StoredEvent[]> {
    const found: StoredEvent[] = [];
    for await (const event of new Subscription(this.#stream, [this.#here(filter)], options, true).events) {
      found.push(event);
    }
    return found;
  }

  /** Iterate over the events that match one of the filters: stored ones, then live ones, without an end. */
  subscribe(filters: Filter | Filter[], options: SubscribeOptions = {}): AsyncIterableIterator<StoredEvent> {
    const wanted = [filters].flat().map((filter) => this.#here(filter));
    return new Subscription(this.#stream, wanted, options).events;
  }

  /** Send a message; the relay has queued it once this returns. */
  async send(message: OutgoingMessage): Promise<SendResult> {
    return (await this.#send(draftMessage(this.key, this.mesh, message))) as SendResult;
  }

  /** Iterate over the messages to this node. The relay sends more as messages are confirmed, and repeats the others. */
  receive(options: ReceiveOptions = {}): AsyncIterableIterator<Message> {
    this.#mailbox = new Mailbox(this.#stream, this.key, this.mesh, options, (late) => void this.confirm(late));
    return this.#mailbox.messages;
  }

  /** Confirm messages: their senders learn of it, and the relay no longer delivers them. */
  async confirm(...messages: Message[]): Promise<Confirmed> {
    const result: Confirmed = { confirmed: [], ignored: [] };
    for (const [sender, ids] of bySender(messages)) {
      const { confirmed, ignored } = await this.#confirm(sender, ids);
      result.confirmed.push(...confirmed);
      result.ignored.push(...ignored);
    }
    this.#mailbox?.forget(messages.map((message) => message.id));
    return result;
  }

  /** Park a message that this program cannot process, for an admin to look at. */
  async reject(message: Message, reason: string): Promise<void> {
    await this.#stream.request(message.id, ["REJECT", message.id, reason]);
    this.#mailbox?.forget([message.id]);
  }

  /** Say that the messages of a gap were read. */
  filled(gap: Gap): void {
    this.#stream.tell(["FILLED", this.mesh, gap.topic, gap.last_seq]);
  }

  /** Acquire a lock, or throw `held`. */
  lock(resource: string, options: LockOptions): Promise<Lock> {
    return Lock.acquire(this.#stream, this.mesh, this.#session, resource, options);
  }

  /** End the connection. Loops over events and messages end; requests without an answer are rejected. */
  close(): void {
    this.#stream.close();
  }

  #here(filter: Filter): Filter {
    return { mesh: this.mesh, ...filter };
  }

  #send(draft: Draft): Promise<unknown> {
    const event: Event = signEvent(this.key, draft);
    return this.#stream.request(event.id, ["EVENT", event]);
  }

  async #confirm(sender: string, ids: string[]): Promise<Confirmed> {
    const event = signEvent(this.key, draftConfirmation(this.mesh, sender, ids));
    try {
      const answer = (await this.#stream.request(event.id, ["CONFIRM", event])) as Partial<Confirmed>;
      return { confirmed: answer.confirmed ?? ids, ignored: answer.ignored ?? [] };
    } catch (error) {
      if (!(error instanceof RelayError) || error.code !== "confirmation_without_effect") throw error;
      return { confirmed: [], ignored: error.problem.ignored as Confirmed["ignored"] };
    }
  }
}

/** Return the ids of messages in groups that fit one confirmation each. */
function* bySender(messages: Message[]): Iterable<[sender: string, ids: string[]]> {
  for (const sender of new Set(messages.map((message) => message.from))) {
    const ids = messages.filter((message) => message.from === sender).map((message) => message.id);
    for (let start = 0; start < ids.length; start += CONFIRMATION_MAX) {
      yield [sender, ids.slice(start, start + CONFIRMATION_MAX)];
    }
  }
}
