/** Penalties and biases as sparse changes of logits, which the device applies before it ranks them. */
import type { Adjustment } from "../engine/input.ts";

/** Range of the repetition penalty. */
export const LEAST_REPETITION_PENALTY = 0.01;
export const MOST_REPETITION_PENALTY = 100;

/** What changes logits. */
export interface PenaltyOptions {
  /** > 0; divides positive logits of tokens that occurred, multiplies negative ones; 1: off */ repetitionPenalty:
    number;
  /** subtracted once from tokens that were generated; 0: off */ presencePenalty: number;
  /** subtracted for each time that a token was generated; 0: off */ frequencyPenalty: number;
  /** added, by token id; -Infinity is not possible, use a mask */ logitBias: ReadonlyMap<number, number>;
}

/** The changes that apply to the next token of one reply. Empty, and free, without penalties and biases. */
export class Adjustments {
  readonly #options: PenaltyOptions;
  readonly #penalises: boolean;
  readonly #counts = new Map<number, number>();
  readonly #entries = new Map<number, Adjustment>();
  #sorted: Adjustment[] | undefined;

  /** `prompt`: the tokens before the reply; they count as occurred, not as generated. */
  constructor(options: PenaltyOptions, prompt: Iterable<number>) {
    this.#options = options;
    const { repetitionPenalty, presencePenalty, frequencyPenalty, logitBias } = options;
    this.#penalises = repetitionPenalty !== 1 || presencePenalty !== 0 || frequencyPenalty !== 0;
    for (const [id, add] of logitBias) this.#entries.set(id, { id, multiply: 1, add });
    if (repetitionPenalty !== 1) { for (const id of prompt) this.#entry(id); }
  }

  /** What the next token's logit will be multiplied by, and what will be added to it if it has no entry in the list; 0: nothing changes. */
  ofNext(): { multiply: number; add: number } {
    if (!this.#penalises) return { multiply: 0, add: 0 };
    const { repetitionPenalty, presencePenalty, frequencyPenalty } = this.#options;
    return { multiply: 1 / repetitionPenalty, add: 0 - (presencePenalty + frequencyPenalty) };
  }

  /** What will be added to the logit of a token with an entry in the list if it is the next. */
  addOfNext({ id, add }: Adjustment): number {
    return this.#penalises ? this.#add(id, (this.#counts.get(id) ?? 0) + 1) : add;
  }

  /** Counts a generated token in. */
  accept(id: number): void {
    if (!this.#penalises) return;
    this.#counts.set(id, (this.#counts.get(id) ?? 0) + 1);
    this.#entry(id);
  }

  /** Ascending by id; undefined without any. */
  list(): readonly Adjustment[] | undefined {
    if (this.#entries.size === 0) return undefined;
    return this.#sorted ??= [...this.#entries.values()].sort((a, b) => a.id - b.id);
  }

  /** The changes after none, one … all of `tokens`, should they be generated; these are not counted in. */
  ahead(tokens: readonly number[]): Adjustments[] {
    const all: Adjustments[] = [this];
    for (const token of tokens) {
      if (!this.#penalises) {
        all.push(this);
        continue;
      }
      const next = all.at(-1)!.#copy();
      next.accept(token);
      all.push(next);
    }
    return all;
  }

  #copy(): Adjustments {
    const copy = new Adjustments(this.#options, []);
    for (const [id, count] of this.#counts) copy.#counts.set(id, count);
    for (const [id, entry] of this.#entries) copy.#entries.set(id, { ...entry });
    return copy;
  }

  /** The same changes applied to a whole row in place, in the device's f32 arithmetic. */
  apply(logits: Float32Array): void {
    for (const entry of this.#entries.values()) logits[entry.id] = adjusted(logits[entry.id], entry);
  }

  /** As `apply`, of one token's logit. */
  applied(id: number, logit: number): number {
    const entry = this.#entries.get(id);
    return entry === undefined ? logit : adjusted(logit, entry);
  }

  /** What is added to the logit of a token that was generated `count` times. */
  #add(id: number, count: number): number {
    const { presencePenalty, frequencyPenalty, logitBias } = this.#options;
    const penalty = count > 0 ? presencePenalty + frequencyPenalty * count : 0;
    return (logitBias.get(id) ?? 0) - penalty;
  }

  #entry(id: number): void {
    const { repetitionPenalty } = this.#options;
    const entry = this.#entries.get(id);
    const add = this.#add(id, this.#counts.get(id) ?? 0);
    if (entry) {
      entry.multiply = 1 / repetitionPenalty;
      entry.add = add;
    } else {
      this.#entries.set(id, { id, multiply: 1 / repetitionPenalty, add });
      this.#sorted = undefined;
    }
  }
}

function adjusted(logit: number, { multiply, add }: Adjustment): number {
  const m = Math.fround(multiply);
  const scaled = logit > 0 ? Math.fround(logit * m) : Math.fround(logit / m);
  return Math.fround(scaled + Math.fround(add));
}
