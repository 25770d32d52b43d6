/**
 * Events that match filters: the stored ones, then live ones, in commit order, none twice and none missing.
 *
 * After a break of the connection a subscription continues at the relay's last cursor and skips what it has handed on.
 */

import { type Event, readEvent } from "./event.js";
import { Feed } from "./feed.js";
import type { Reader, Stream } from "./stream.js";
import { type Command, type Problem, RelayError } from "./wire.js";

/** Conditions that all must hold; of a list, one value must match. See "Filters" in docs/protocol.md. */
export interface Filter {
  ids?: string[];
  authors?: string[];
  kinds?: number[];
  mesh?: string;
  since_ns?: bigint;
  until_ns?: bigint;
  [tag: `#${string}`]: string[];
}

/** An event and its place in the relay's journal; null if it is ephemeral. */
export type StoredEvent = Event & { seq: number | null };

export interface SubscribeOptions {
  /** Start after this cursor of an earlier subscription. */
  cursor?: string;
  /** Start with the newest stored events, at most this many. */
  limit?: number;
}

export class Subscription implements Reader {
  readonly events: Feed<StoredEvent>;
  readonly #stream: Stream;
  readonly #name: string;
  readonly #filters: Filter[];
  readonly #options: SubscribeOptions;
  readonly #isQuery: boolean;
  #cursor: string | null | undefined;
  #lastSeq = 0;

  /** A query ends where the live events would begin. */
  constructor(stream: Stream, filters: Filter[], options: SubscribeOptions, isQuery = false) {
    this.events = new Feed(() => this.#close());
    this.#stream = stream;
    this.#name = crypto.randomUUID();
    this.#filters = filters;
    this.#options = options;
    this.#isQuery = isQuery;
    stream.addReader(this.#name, this);
  }

  /** The position after everything up to the last end of stored events, for a later subscription. */
  get cursor(): string | undefined {
    return this.#cursor ?? this.#options.cursor;
  }

  open(): Command {
    const options = this.#cursor ? { cursor: this.#cursor } : this.#options;
    return ["REQ", this.#name, options, ...this.#filters];
  }

  take(command: Command): void {
    if (command[0] === "EVENT") this.#takeEvent(readEvent(command[2]), command[3] as number | null);
    else if (command[0] === "EOSE") this.#takeStoredEnd(command[2] as string | null);
    else this.#takeClosed(command[2] as Problem, command[3] as string | null);
  }

  end(error?: Error): void {
    this.events.end(error);
  }

  #takeEvent(event: Event, seq: number | null): void {
    if (seq !== null && seq <= this.#lastSeq) return;
    this.#lastSeq = seq ?? this.#lastSeq;
    this.events.push({ ...event, seq });
  }

  #takeStoredEnd(cursor: string | null): void {
    this.#cursor = cursor ?? this.#cursor;
    if (this.#isQuery) {
      this.events.end();
      this.#close();
    }
  }

  #takeClosed(problem: Problem, cursor: string | null): void {
    this.#cursor = cursor ?? this.#cursor;
    if (problem.code === "reader_too_slow") return this.#stream.tell(this.open());
    this.#stream.removeReader(this.#name);
    this.events.end(new RelayError({ cursor, ...problem }));
  }

  #close(): void {
    this.#stream.removeReader(this.#name);
    this.#stream.tell(["CLOSE", this.#name]);
  }
}
