/** What a forward gives, seen by one of the sequences that took part. */
import type { Buffer } from "../../ffi/buffer.ts";
import { tensorBytes } from "../schedule/plan.ts";
import { OUTPUT, type TextPlan } from "../schedule/text.ts";
import type { RowCandidates } from "./speculative.ts";

/** Candidates in one row. */
export const CANDIDATES = 256;

/** Bits of the output mask: what a draw needs. */
export const CANDIDATE_OUTPUTS: number = 1 << OUTPUT.ids | 1 << OUTPUT.values | 1 << OUTPUT.stats;
/** The logits alone. */
export const LOGITS_OUTPUT: number = 1 << OUTPUT.logits;
/** The state that a drafter starts from. */
export const STATE_OUTPUT: number = 1 << OUTPUT.state;

/** Where the outputs of a run lie in the memory that it is given. */
export class OutputViews {
  readonly plan: TextPlan;
  /** outputs that were asked for */
  readonly mask: number;
  /** output rows */
  readonly count: number;
  /** of all outputs */
  readonly bytes: number;
  readonly #views = new Map<number, Uint8Array<ArrayBuffer>>();
  /** by row, once they were looked at: the next run most likely has the same places */
  readonly #candidates: RowCandidates[] = [];

  /** `room(bytes)` gives the memory. */
  constructor(
    plan: TextPlan,
    mask: number,
    count: number,
    room: (bytes: number) => Uint8Array<ArrayBuffer>,
  ) {
    [this.plan, this.mask, this.count] = [plan, mask, count];
    const sizes = plan.outputs.map((tensor, i) =>
      mask >> i & 1 ? tensorBytes(tensor, { ...plan.limits, rows: count, out_rows: count }) : 0
    );
    this.bytes = sizes.reduce((sum, size) => sum + size, 0);
    const memory = room(this.bytes);
    let at = 0;
    sizes.forEach((size, i) => {
      if (size > 0) this.#views.set(i, memory.subarray(at, at += size));
    });
  }

  /** The bytes of output `index`. Throws `RangeError` where it was not asked for. */
  of(index: number): Uint8Array<ArrayBuffer> {
    const view = this.#views.get(index);
    if (view === undefined) throw new RangeError(`Output ${index} was not asked for.`);
    return view;
  }

  /** f32 of `rows` rows of output `index` from `row` on. */
  floats(index: number, row: number, rows: number): Float32Array<ArrayBuffer> {
    const view = this.of(index);
    const width = this.plan.outputs[index].shape[1] as number;
    return new Float32Array(view.buffer, view.byteOffset + row * width * 4, rows * width);
  }

  /** See `Results.candidates`. */
  candidates(row: number): RowCandidates {
    return this.#candidates[row] ??= this.#candidatesOf(row);
  }

  #candidatesOf(row: number): RowCandidates {
    const ids = this.of(OUTPUT.ids);
    return {
      ids: new Uint32Array(ids.buffer, ids.byteOffset + row * CANDIDATES * 4, CANDIDATES),
      values: this.floats(OUTPUT.values, row, 1),
      stats: this.floats(OUTPUT.stats, row, 1),
    };
  }
}

/** The output rows of one sequence in a forward. The views are valid until the call that got them returns. */
export class Results {
  /** output rows of this sequence */
  readonly rows: number;
  readonly #first: number;
  readonly #views: OutputViews;
  readonly #arena: Buffer;

  /** Rows [first, first + rows) of what a run gave: what was asked for in `views`, the rest in `arena`. */
  constructor(views: OutputViews, arena: Buffer, first: number, rows: number) {
    this.#views = views;
    this.#arena = arena;
    this.#first = first;
    this.rows = rows;
  }

  /** The candidates of output row `row`: their adjusted logits; raw log-sum-exp, that of adjusted / temperature, the largest. */
  candidates(row: number): RowCandidates {
    return this.#views.candidates(this.#first + row);
  }

  /** f32 [H] state of output row `row` after the final norm; a copy. */
  state(row: number): Float32Array<ArrayBuffer> {
    return this.#views.floats(OUTPUT.state, this.#first + row, 1).slice();
  }

  /** f32 of output `index`, all rows. */
  all(index: number): Float32Array {
    return this.#views.floats(index, this.#first, this.rows);
  }

  /** f32 [H] of the last (only) row: the states that a traced plan keeps, read from the device. */
  states(): Float32Array<ArrayBuffer>[] {
    return this.#views.plan.states.map((tensor) => {
      const state = new Float32Array(tensor.shape[1] as number);
      this.#arena.read(tensor.offset, state);
      return state;
    });
  }

  /** f32 [V] raw logits of output row `row`, read from the device; valid until the next call. */
  logits(row: number): Float32Array<ArrayBuffer> {
    const V = this.#views.plan.vocabularySize;
    if (oneRow.length !== V) oneRow = new Float32Array(V);
    const logits = oneRow;
    this.#arena.read(this.#views.plan.outputs[OUTPUT.logits].offset + (this.#first + row) * V * 4, logits);
    return logits;
  }

  /** The raw logit of token `id` in output row `row`, read from the device. */
  logit(row: number, id: number): number {
    const at = (this.#first + row) * this.#views.plan.vocabularySize + id;
    this.#arena.read(this.#views.plan.outputs[OUTPUT.logits].offset + at * 4, oneFloat);
    return oneFloat[0];
  }
}

const oneFloat = new Float32Array(1);

/** Room for one row of logits: fresh memory of that size costs more than what it is read for. */
let oneRow = new Float32Array(0);
