/** Reading one JSON object of a config with every value checked; an error names the key and the value. */
import { CheckpointError } from "../errors.ts";

/** Sizes beyond this are a broken file, not a model. */
const MAX_SIZE = 2 ** 31 - 1;

/** Bounds and default of a number. Without `or` the key is required. */
export interface NumberRule {
  /** Smallest value allowed. */
  min?: number;
  /** Largest value allowed. */
  max?: number;
  /** Used when the key is absent or null. */
  or?: number;
}

/** One JSON object of a config file. */
export class Fields {
  /** `where` is the dotted path of this object with a trailing dot, or empty at the top. */
  constructor(
    private readonly record: Readonly<Record<string, unknown>>,
    private readonly where: string = "",
    private readonly file: string = "config.json",
  ) {}

  /** Wraps `value`, which must be a JSON object. */
  static of(value: unknown, where: string = "", file: string = "config.json"): Fields {
    if (!isRecord(value)) {
      throw new CheckpointError(
        "invalid_config",
        `${file}: ${where || "the top level"} is not a JSON object.`,
      );
    }
    return new Fields(value, where, file);
  }

  /** Whether the key is there and not null. */
  has(key: string): boolean {
    return this.get(key) !== undefined;
  }

  /** The raw value; undefined when absent or null. */
  get(key: string): unknown {
    return Object.hasOwn(this.record, key) ? this.record[key] ?? undefined : undefined;
  }

  /** Whether the key is there with the value null, which some keys use for "none". */
  isNull(key: string): boolean {
    return Object.hasOwn(this.record, key) && this.record[key] === null;
  }

  /** All keys. */
  keys(): string[] {
    return Object.keys(this.record);
  }

  /** The error "`key` is `value`; it must be `rule`". */
  wrong(key: string, rule: string): CheckpointError {
    const value = Object.hasOwn(this.record, key) ? shorten(this.record[key]) : "missing";
    return new CheckpointError(
      "invalid_config",
      `${this.file}: ${this.where}${key} is ${value}; it must be ${rule}.`,
    );
  }

  /** An integer of at least `min` (1 unless said otherwise). */
  integer(key: string, { min = 1, max = MAX_SIZE, or }: NumberRule = {}): number {
    const value = this.get(key) ?? or;
    if (typeof value !== "number" || !Number.isInteger(value) || value < min || value > max) {
      const range = max === MAX_SIZE ? `of at least ${min}` : `from ${min} to ${max}`;
      throw this.wrong(key, `an integer ${range}`);
    }
    return value;
  }

  /** A number in [min, max] that is finite in f32, as plans hold it. */
  number(key: string, { min = -Infinity, max = Infinity, or }: NumberRule = {}): number {
    const value = this.get(key) ?? or;
    if (typeof value !== "number" || !Number.isFinite(Math.fround(value)) || value < min || value > max) {
      throw this.wrong(key, `a finite number from ${min} to ${max}`);
    }
    return value;
  }

  /** A number that is finite and above 0 in f32, as plans hold it. */
  positive(key: string, or?: number): number {
    const value = this.get(key) ?? or;
    if (typeof value !== "number" || !Number.isFinite(Math.fround(value)) || Math.fround(value) <= 0) {
      throw this.wrong(key, "a number above 0 that 32 bits can hold");
    }
    return value;
  }

  /** A boolean. */
  boolean(key: string, or: boolean): boolean {
    const value = this.get(key) ?? or;
    if (typeof value !== "boolean") throw this.wrong(key, "true or false");
    return value;
  }

  /** One of a few texts. */
  oneOf<T extends string>(key: string, choices: readonly T[], or?: T): T {
    const value = this.get(key) ?? or;
    if (!choices.includes(value as T)) throw this.wrong(key, choices.map((c) => `"${c}"`).join(" or "));
    return value as T;
  }

  /** A nested object, or null when absent. */
  object(key: string): Fields | null {
    const value = this.get(key);
    if (value === undefined) return null;
    if (!isRecord(value)) throw this.wrong(key, "a JSON object");
    return new Fields(value, `${this.where}${key}.`, this.file);
  }

  /** A token id below `vocabularySize`, or null when absent. */
  token(key: string, vocabularySize: number): number | null {
    return this.has(key) ? this.integer(key, { min: 0, max: vocabularySize - 1 }) : null;
  }

  /** Token ids given as one id or a list of ids; empty when absent. */
  tokens(key: string, vocabularySize: number): number[] {
    const value = this.get(key);
    if (value === undefined) return [];
    const ids = Array.isArray(value) ? value : [value];
    for (const id of ids) {
      if (!Number.isInteger(id) || id < 0 || id >= vocabularySize) {
        throw this.wrong(key, `token ids below the vocabulary size ${vocabularySize}`);
      }
    }
    return ids;
  }
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function shorten(value: unknown): string {
  const text = JSON.stringify(value) ?? String(value);
  return text.length > 80 ? `${text.slice(0, 80)}…` : text;
}
