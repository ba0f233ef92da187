/**
 * What a tokenizer knows, as plain data: tokens, merges, added tokens and the few rules around them. Readers
 * (`tokenizer.json`, GGUF metadata) make a {@link Vocabulary}; the algorithm in `tokenizer.ts` reads nothing else.
 */

import { IdSet } from "./id_set.ts";
import type { TextList } from "./texts.ts";

/** A token that is matched in the text before byte-pair merging. */
export interface AddedToken {
  /** Its index in {@link Vocabulary.tokens}. */
  readonly id: number;
  /** Exact text. */
  readonly text: string;
  /** Control tokens are recognised only when asked for, and `skipSpecial` leaves them out. */
  readonly control: boolean;
  /** Matched after normalization (true) or on the text as given (false). */
  readonly normalized: boolean;
}

/** Every occurrence of `from` becomes `to`. `from` is not empty. */
export interface Replacement {
  /** Text to replace. */
  readonly from: string;
  /** What takes its place. */
  readonly to: string;
}

/** One merge: the two parts, or both in one string with a space between. */
export type Merge = string | readonly [left: string, right: string];

/** All that a byte-pair tokenizer needs; immutable once made. */
export interface Vocabulary {
  /** Token text by id, without holes. */
  readonly tokens: TextList;
  /** Merges, most important first. A pair that occurs twice counts where it comes last. Empty where there are scores. */
  readonly merges: Iterable<Merge> & { readonly length: number };
  /** By id, for vocabularies without merges: two adjacent tokens become the piece that they spell, highest score first. */
  readonly scores?: ArrayLike<number>;
  /** Which ids are such pieces; without it all. */
  readonly pieces?: (id: number) => boolean;
  /** Tokens matched before merging. */
  readonly added: readonly AddedToken[];
  /** Stands for what no token can spell. */
  readonly unknown?: number;
  /** Consecutive unknown characters become one unknown token. */
  readonly fuseUnknown: boolean;
  /** Characters without a token are spelled by their UTF-8 bytes `<0x00>` to `<0xFF>`. */
  readonly byteFallback: boolean;
  /** Applied in order before merging. */
  readonly normalize: readonly Replacement[];
  /** Applied in order to each token's text when decoding. */
  readonly denormalize: readonly Replacement[];
  /** Begins a sequence. */
  readonly bos?: number;
  /** Ends a sequence. */
  readonly eos?: number;
  /** Every id after which generation stops, from all sources; includes `eos`. */
  readonly stops: readonly number[];
}

/** The control tokens of a vocabulary. */
export function controlIdsOf({ tokens, added }: Vocabulary): IdSet {
  const ids = new IdSet(tokens.length);
  for (const { id, control } of added) if (control) ids.add(id);
  return ids;
}

/** `<0x41>` → 0x41; undefined for any other text. */
export function byteOfToken(text: string): number | undefined {
  return /^<0x[0-9A-Fa-f]{2}>$/.test(text) ? Number.parseInt(text.slice(3, 5), 16) : undefined;
}

/** Applies replacements in order. */
export function replaceAll(text: string, replacements: readonly Replacement[]): string {
  for (const { from, to } of replacements) text = text.replaceAll(from, () => to);
  return text;
}
