/** What a forward gives, seen by one of the sequences that took part. */
import type { Buffer } from "../../ffi/buffer.ts";
import { OUTPUT, type TextPlan } from "../schedule/text.ts";

/** Candidates in one row. */
export const CANDIDATES = 256;

/** Bits of the output mask: what a draw needs. */
export const CANDIDATE_OUTPUTS: number = 1 << OUTPUT.ids | 1 << OUTPUT.values | 1 << OUTPUT.stats;
/** The logits alone. */
export const LOGITS_OUTPUT: number = 1 << OUTPUT.logits;
/** The state that a drafter starts from. */
export const STATE_OUTPUT: number = 1 << OUTPUT.state;

/** The output rows of one sequence in a forward. The views are valid until the call that got them returns. */
export class Results {
  /** output rows of this sequence */
  readonly rows: number;
  readonly #first: number;
  readonly #views: ReadonlyMap<number, Uint8Array<ArrayBuffer>>;
  readonly #plan: TextPlan;
  readonly #arena: Buffer;

  /** Rows [first, first + rows) of what a run of `plan` gave: `views` by output, the rest in `arena`. */
  constructor(
    plan: TextPlan,
    arena: Buffer,
    views: ReadonlyMap<number, Uint8Array<ArrayBuffer>>,
    first: number,
    rows: number,
  ) {
    this.#plan = plan;
    this.#arena = arena;
    this.#views = views;
    this.#first = first;
    this.rows = rows;
  }

  /** u32 [256] candidate ids of output row `row`. */
  ids(row: number): Uint32Array {
    const view = this.#view(OUTPUT.ids);
    return new Uint32Array(view.buffer, view.byteOffset + (this.#first + row) * CANDIDATES * 4, CANDIDATES);
  }

  /** f32 [256] their adjusted logits. */
  values(row: number): Float32Array {
    return this.#floats(OUTPUT.values, row, 1);
  }

  /** f32 [4]: raw log-sum-exp, that of adjusted / temperature, largest adjusted logit, 0. */
  stats(row: number): Float32Array {
    return this.#floats(OUTPUT.stats, row, 1);
  }

  /** f32 [H] state of output row `row` after the final norm; a copy. */
  state(row: number): Float32Array<ArrayBuffer> {
    return this.#floats(OUTPUT.state, row, 1).slice();
  }

  /** f32 of output `index`, all rows. */
  all(index: number): Float32Array {
    return this.#floats(index, 0, this.rows);
  }

  /** f32 [H] of the last (only) row: the states that a traced plan keeps, read from the device. */
  states(): Float32Array<ArrayBuffer>[] {
    return this.#plan.states.map((tensor) => {
      const state = new Float32Array(tensor.shape[1] as number);
      this.#arena.read(tensor.offset, state);
      return state;
    });
  }

  /** f32 [V] raw logits of output row `row`, read from the device; valid until the next call. */
  logits(row: number): Float32Array<ArrayBuffer> {
    const V = this.#plan.vocabularySize;
    if (oneRow.length !== V) oneRow = new Float32Array(V);
    const logits = oneRow;
    this.#arena.read(this.#plan.outputs[OUTPUT.logits].offset + (this.#first + row) * V * 4, logits);
    return logits;
  }

  /** The raw logit of token `id` in output row `row`, read from the device. */
  logit(row: number, id: number): number {
    const at = (this.#first + row) * this.#plan.vocabularySize + id;
    this.#arena.read(this.#plan.outputs[OUTPUT.logits].offset + at * 4, oneFloat);
    return oneFloat[0];
  }

  #floats(index: number, row: number, rows: number): Float32Array<ArrayBuffer> {
    const view = this.#view(index);
    const width = this.#plan.outputs[index].shape[1] as number;
    return new Float32Array(view.buffer, view.byteOffset + (this.#first + row) * width * 4, rows * width);
  }

  #view(index: number): Uint8Array<ArrayBuffer> {
    const view = this.#views.get(index);
    if (view === undefined) throw new RangeError(`Output ${index} was not asked for.`);
    return view;
  }
}

const oneFloat = new Float32Array(1);

/** Room for one row of logits: fresh memory of that size costs more than what it is read for. */
let oneRow = new Float32Array(0);
