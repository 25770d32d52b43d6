/**
 * The WebSocket of a client: it logs in, matches answers to requests, and connects again when the connection breaks.
 *
 * A request stays until it is answered: after a break it is sent again, byte for byte, and the relay recognises it.
 * Readers (subscriptions, the mailbox) are opened again on each connection, each from where it was.
 */

import WebSocket from "ws";

import { KIND, signEvent } from "./event.js";
import { withResolvers } from "./feed.js";
import type { Key } from "./keys.js";
import { type Command, parseJson, type Problem, RelayError, writeJson } from "./wire.js";

/** Something that the relay sends to, from the time it is opened until it ends. */
export interface Reader {
  /** The command that opens it on a new connection. */
  open(): Command;
  take(command: Command): void;
  end(error?: Error): void;
}

export interface Hello {
  relay: string;
  challenge: string;
  features: Record<string, unknown>;
}

interface Request extends PromiseWithResolvers<unknown> {
  text: string;
}

/** The relay pings a peer that is silent for 25 seconds, so a longer silence means that the connection is dead. */
const SILENCE_MS = 60_000;
const RETRY_MIN_MS = 200;
const RETRY_MAX_MS = 10_000;
const POLICY_VIOLATION = 1008;
/** Close codes after which the next connection would end the same way: a frame that is too large, a newer reader. */
const FINAL_CODES = new Map([[1009, "frame_too_large"], [4003, "replaced_by_newer_connection"]]);

export class Stream {
  hello: Hello | undefined;
  readonly #url: string;
  readonly #key: Key;
  readonly #requests = new Map<string, Request>();
  readonly #readers = new Map<string, Reader>();
  readonly #opened = withResolvers<void>();
  #relay: string | undefined;
  #socket: WebSocket | undefined;
  #isReady = false;
  #wasReady = false;
  #failures = 0;
  #retry: NodeJS.Timeout | undefined;
  #notice: Problem | undefined;
  #ended: Error | undefined;

  /** Without the relay's node id, the first one that answers is trusted, and no other after it. */
  constructor(url: string, key: Key, relay?: string) {
    this.#url = new URL("/v1/stream", url).href.replace(/^http/, "ws");
    this.#key = key;
    this.#relay = relay;
  }

  /** Connect and log in; a failure of the first connection is the caller's, later ones are tried again. */
  open(): Promise<void> {
    this.#connect();
    return this.#opened.promise;
  }

  /** Send a command whose answer names this id, and return the answer or throw the RelayError. */
  request(id: string, command: Command): Promise<unknown> {
    if (this.#ended) return Promise.reject(this.#ended);
    const request = { ...withResolvers<unknown>(), text: writeJson(command) };
    this.#requests.set(id, request);
    if (this.#isReady) this.#socket?.send(request.text);
    return request.promise;
  }

  /** Send a command that has no answer. */
  tell(command: Command): void {
    if (this.#isReady) this.#socket?.send(writeJson(command));
  }

  addReader(name: string, reader: Reader): void {
    if (this.#ended) return reader.end(this.#ended);
    this.#readers.set(name, reader);
    this.tell(reader.open());
  }

  removeReader(name: string): void {
    this.#readers.delete(name);
  }

  close(): void {
    this.#end(undefined);
  }

  #connect(): void {
    const socket = new WebSocket(this.#url, { perMessageDeflate: false });
    const silence = setTimeout(() => socket.terminate(), SILENCE_MS);
    let failure: Error | undefined;
    this.#socket = socket;
    socket.on("message", (data, isBinary) => {
      silence.refresh();
      if (!isBinary) this.#takeFrame(String(data));
    });
    // Frames are handled as they come, so a pong never overtakes the work that came before its ping.
    socket.on("ping", () => silence.refresh());
    socket.on("error", (error) => (failure = error));
    socket.on("close", (code) => {
      clearTimeout(silence);
      this.#onClose(code, failure);
    });
  }

  #takeFrame(text: string): void {
    try {
      const frame = parseJson(text) as Command | Command[];
      for (const command of Array.isArray(frame[0]) ? (frame as Command[]) : [frame as Command]) this.#take(command);
    } catch (error) {
      this.#end(error as Error);  // the relay breaks the protocol: nothing it says can be relied on
    }
  }

  #take(command: Command): void {
    const [verb, first, ...rest] = command;
    switch (verb) {
      case "HELLO":
        return this.#logIn(first as Hello);
      case "AUTHED":
        return this.#onReady();
      case "OK":
        return this.#answer(first as string, rest[0] === true, rest[1]);
      case "LOCKED":
        return this.#answer(first as string, !isProblem(rest[0]), rest[0]);
      case "EVENT":
      case "EOSE":
      case "CLOSED":
        return this.#readers.get(first as string)?.take(command);
      case "NOTICE":
        this.#notice = { code: first as string, detail: rest[0] as string };
    }
    this.#readers.get("mailbox")?.take(command);
  }

  #logIn(hello: Hello): void {
    if (this.#relay !== undefined && this.#relay !== hello.relay) {
      throw new RelayError({ code: "relay_key_changed", detail: `expected ${this.#relay}, found ${hello.relay}` });
    }
    this.#relay = hello.relay;
    this.hello = hello;
    const tags: [string, string][] = [["relay", hello.relay], ["challenge", hello.challenge]];
    this.#socket?.send(writeJson(["AUTH", signEvent(this.#key, { kind: KIND.authentication, tags })]));
  }

  #onReady(): void {
    this.#isReady = this.#wasReady = true;
    this.#failures = 0;
    this.#notice = undefined;
    // Confirmations go first: the relay would deliver their messages again to a mailbox that opens before them.
    for (const request of this.#requests.values()) this.#socket?.send(request.text);
    for (const reader of this.#readers.values()) this.tell(reader.open());
    this.#opened.resolve();
  }

  #answer(id: string, isDone: boolean, answer: unknown): void {
    const request = this.#requests.get(id);
    this.#requests.delete(id);
    if (isDone) request?.resolve(answer);
    else request?.reject(new RelayError(answer as Problem));
  }

  #onClose(code: number, failure: Error | undefined): void {
    const wasLoggedIn = this.#isReady;
    this.#isReady = false;
    if (this.#ended) return;
    const final = FINAL_CODES.get(code);
    if (final) return this.#end(new RelayError({ code: final }));
    if (this.#notice && !wasLoggedIn && code === POLICY_VIOLATION) return this.#end(new RelayError(this.#notice));
    if (!this.#wasReady) return this.#end(failure ?? new Error(`the relay closed the connection with ${code}`));
    const wait = Math.min(RETRY_MIN_MS * 2 ** this.#failures++, RETRY_MAX_MS) * (0.5 + Math.random() / 2);
    this.#retry = setTimeout(() => this.#connect(), wait);
  }

  #end(error: Error | undefined): void {
    if (this.#ended) return;
    this.#ended = error ?? new Error("the client is closed");
    clearTimeout(this.#retry);
    this.#opened.reject(this.#ended);
    for (const reader of this.#readers.values()) reader.end(error);
    for (const request of this.#requests.values()) request.reject(this.#ended);
    this.#readers.clear();
    this.#requests.clear();
    this.#socket?.close();
  }
}

function isProblem(value: unknown): boolean {
  return typeof value === "object" && value !== null && "code" in value;
}
