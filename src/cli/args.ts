/**
 * Command-line arguments: typed flags from a table. The untyped `deno-std` parser does the splitting; this file
 * knows types, refuses unknown flags and writes the help text.
 */
import * as untyped from "npm:deno-std@1.4.0/cli/parse_args.js";
import { InvalidArgument, UnknownOption } from "../errors.ts";

const parseArgs = (untyped as unknown as {
  parseArgs(args: string[], options: object): Record<string, unknown> & { _: (string | number)[] };
}).parseArgs;

/** One flag: `--name VALUE`, or `--name` alone when its type is boolean. */
export interface Flag {
  /** what its value is; bytes are a number that may have a unit, as in 8GB or 512MiB */
  type: "string" | "number" | "bytes" | "boolean" | "strings";
  /** shown in the help */ value?: string;
  help: string;
  choices?: readonly string[];
}

/** Flags by name, without the dashes. */
export type Flags = Record<string, Flag>;

type ValueOf<F extends Flag> = F["type"] extends "number" | "bytes" ? number
  : F["type"] extends "boolean" ? boolean
  : F["type"] extends "strings" ? string[]
  : string;

/** Parsed values of a flag table; absent flags are undefined. */
export type Values<T extends Flags> = { [K in keyof T]?: ValueOf<T[K]> };

/**
 * Parses `args` by a flag table into values and positional words; what follows `--` is words.
 * Throws {@linkcode UnknownOption} for a flag outside the table and {@linkcode InvalidArgument} for a bad value.
 */
export function parseFlags<T extends Flags>(
  args: readonly string[],
  flags: T,
): { values: Values<T>; words: string[] } {
  const of = (...types: Flag["type"][]) =>
    Object.keys(flags).filter((name) => types.includes(flags[name].type));
  const unknown: string[] = [];
  const joined = joinValues(args, flags);
  const parsed = parseArgs([...joined], {
    boolean: of("boolean"),
    string: [...of("string", "number", "bytes", "strings"), "_"],
    collect: of("strings"),
    unknown: (argument: string, key?: string) => {
      if (key !== undefined) unknown.push(argument.startsWith("--") ? `--${key}` : argument);
      return key === undefined;
    },
  });
  if (unknown.length > 0) {
    throw new UnknownOption(
      unknown[0],
      Object.keys(flags).map((name) => `--${name}`),
    );
  }
  const end = joined.indexOf("--");
  const before = end < 0 ? joined : joined.slice(0, end);
  const given = (name: string) => before.some((arg) => arg === `--${name}` || arg.startsWith(`--${name}=`));
  const values: Record<string, unknown> = {};
  for (const [name, flag] of Object.entries(flags)) {
    if (!given(name)) continue;
    if (flag.type === "boolean") checkSwitch(name, before);
    values[name] = readValue(name, flag, parsed[name]);
  }
  return { values: values as Values<T>, words: parsed._.map(String) };
}

/** Refuses words for a command that takes `most` at most. Throws {@linkcode InvalidArgument}. */
export function checkWords(words: readonly string[], most = 0): void {
  if (words.length <= most) return;
  throw new InvalidArgument(`"${words[most]}" is one word too many. --help shows what the command takes.`);
}

/** `--name value` as `--name=value`, so that a value may begin with a dash. */
function joinValues(args: readonly string[], flags: Flags): string[] {
  const joined: string[] = [];
  for (let i = 0; i < args.length; i++) {
    if (args[i] === "--") return [...joined, ...args.slice(i)];
    const name = args[i].slice(2);
    const takesValue = args[i].startsWith("--") && Object.hasOwn(flags, name) &&
      flags[name].type !== "boolean";
    if (!takesValue) joined.push(args[i]);
    else if (i + 1 === args.length || args[i + 1].startsWith("--")) {
      throw new InvalidArgument(`--${name} needs a value, as in --${name}=VALUE.`);
    } else joined.push(`--${name}=${args[++i]}`);
  }
  return joined;
}

/** A switch stands alone, or before true or false; the parser takes any other value for true. */
function checkSwitch(name: string, args: readonly string[]): void {
  for (const arg of args) {
    if (!arg.startsWith(`--${name}=`)) continue;
    const text = arg.slice(name.length + 3);
    if (text !== "true" && text !== "false") {
      throw new InvalidArgument(`--${name} is "${text}"; it is a switch and takes no value.`);
    }
  }
}

function readValue(name: string, flag: Flag, raw: unknown): unknown {
  if (flag.type === "boolean") return raw === true;
  if (flag.type === "strings") return (raw as unknown[]).map(String);
  const text = Array.isArray(raw) ? String(raw.at(-1)) : String(raw ?? "");
  if (flag.choices && !flag.choices.includes(text)) {
    throw new InvalidArgument(`--${name} is "${text}"; it takes one of ${flag.choices.join(", ")}.`);
  }
  if (flag.type === "string") return text;
  const number = flag.type === "bytes" ? bytesOf(text) : Number(text);
  if (text.trim() === "" || !Number.isFinite(number)) {
    const wanted = flag.type === "bytes" ? "bytes, as in 8GB, 512MiB or 8000000000" : "a number";
    throw new InvalidArgument(`--${name} is "${text}"; it takes ${wanted}.`);
  }
  return number;
}

/** Units by their first letter, as powers. */
const UNITS = "kmgt";

/** Bytes of a number that may have a unit, of 1000s or, as in KiB, of 1024s; NaN for other texts. */
function bytesOf(text: string): number {
  const [, digits, letter, binary] = /^\s*(\d+(?:\.\d+)?)\s*([kmgt])(i?)b?\s*$/i.exec(text) ?? [];
  if (digits === undefined) return Number(text);
  return Math.floor(Number(digits) * (binary ? 1024 : 1000) ** (UNITS.indexOf(letter.toLowerCase()) + 1));
}

/** Help lines of a flag table, one a flag. */
export function describeFlags(flags: Flags): string {
  const rows = Object.entries(flags).map(([name, flag]) => {
    const value = flag.type === "boolean"
      ? ""
      : ` ${flag.value ?? (flag.choices?.join("|") ?? flag.type.toUpperCase())}`;
    return [`  --${name}${value}`, flag.help] as const;
  });
  const width = Math.max(...rows.map(([left]) => left.length)) + 2;
  return rows.map(([left, help]) => left.padEnd(width) + help).join("\n");
}
