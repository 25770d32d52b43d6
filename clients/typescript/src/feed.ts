/** A queue that one reader empties with `for await`; it ends when its writer says so or the reader leaves the loop. */

export class Feed<T> implements AsyncIterableIterator<T> {
  readonly #items: T[] = [];
  readonly #waiting: PromiseWithResolvers<IteratorResult<T>>[] = [];
  readonly #onReturn: () => void;
  #end: { error?: Error } | undefined;

  constructor(onReturn: () => void) {
    this.#onReturn = onReturn;
  }

  push(item: T): void {
    const reader = this.#waiting.shift();
    if (reader) reader.resolve({ done: false, value: item });
    else this.#items.push(item);
  }

  /** End the feed after the items in it, with an error if one is given. */
  end(error?: Error): void {
    this.#end ??= error ? { error } : {};
    for (const reader of this.#waiting.splice(0)) this.#finish(reader);
  }

  next(): Promise<IteratorResult<T>> {
    const reader = withResolvers<IteratorResult<T>>();
    if (this.#items.length > 0) reader.resolve({ done: false, value: this.#items.shift()! });
    else if (this.#end) this.#finish(reader);
    else this.#waiting.push(reader);
    return reader.promise;
  }

  return(): Promise<IteratorResult<T>> {
    this.#items.length = 0;
    this.end();
    this.#onReturn();
    return this.next();
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  #finish(reader: PromiseWithResolvers<IteratorResult<T>>): void {
    const error = this.#end?.error;
    this.#end = {};  // the error is thrown once
    if (error) reader.reject(error);
    else reader.resolve({ done: true, value: undefined });
  }
}

/** Promise.withResolvers, which Node 20 does not have. */
export function withResolvers<T>(): PromiseWithResolvers<T> {
  let resolve!: PromiseWithResolvers<T>["resolve"];
  let reject!: PromiseWithResolvers<T>["reject"];
  const promise = new Promise<T>((onDone, onFailure) => ([resolve, reject] = [onDone, onFailure]));
  return { promise, resolve, reject };
}
