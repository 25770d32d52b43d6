/**
 * JSON with nanoseconds: fields whose names end in `_ns` are bigint here and exact on the wire; problems of a relay.
 */

// No quote inside a JSON string follows `_ns` directly: there it has a backslash before it.
const NS_NUMBER = /_ns":\s*(\d+)/g;

/** A command of the stream: its verb and its arguments. */
export type Command = [verb: string, ...unknown[]];

export function parseJson(text: string): unknown {
  return JSON.parse(text.replace(NS_NUMBER, '_ns":"$1"'), (name, value: unknown) =>
    name.endsWith("_ns") && typeof value === "string" && /^\d+$/.test(value) ? BigInt(value) : value,
  );
}

/** Write JSON; a relay takes nanoseconds as decimal text. */
export function writeJson(value: unknown): string {
  return JSON.stringify(value, (_, each: unknown) => (typeof each === "bigint" ? String(each) : each));
}

/** Write JSON in the form of RFC 8785: members sorted by their UTF-16 code units, no white space. */
export function canonicalJson(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonicalJson).join()}]`;
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  const members = Object.entries(value).filter(([, each]) => each !== undefined);
  members.sort(([a], [b]) => (a < b ? -1 : 1));
  return `{${members.map(([name, each]) => `${JSON.stringify(name)}:${canonicalJson(each)}`).join()}}`;
}

/** What a relay answers when it refuses something. */
export interface Problem {
  code: string;
  detail?: string;
  hint?: string;
  [field: string]: unknown;
}

/** A refusal of the relay, or the end of a connection that must not be made again. */
export class RelayError extends Error {
  constructor(readonly problem: Problem) {
    super([`${problem.code}: ${problem.detail ?? "refused"}`, problem.hint].filter(Boolean).join(". "));
    this.name = "RelayError";
  }

  /** One of the codes in docs/reference/errors.md. */
  get code(): string {
    return this.problem.code;
  }
}
