/**
 * A drafter on a device beside its target: one step takes a token and a state and gives logits of a guess of the token after it,
 * and the state for the next step. It reads the target's pages and embedding where they lie.
 */
import type { Buffer } from "../../ffi/buffer.ts";
import type { Pass } from "../../ffi/pass.ts";
import type { ModelConfig } from "../checkpoint/config.ts";
import { type Checkpoint, openCheckpoint } from "../checkpoint/open.ts";
import type { IntegerTensor, WeightTensor } from "../checkpoint/tensor.ts";
import type { TextWeights } from "../checkpoint/weights.ts";
import { CheckpointError, Disposed, InvalidArgument } from "../errors.ts";
import { checkDrafter, type DrafterPlan, drafterPlan, type DrafterPlanOptions } from "../schedule/drafter.ts";
import { firstWeightBuffer, OUTPUT } from "../schedule/text.ts";
import type { SharedParts } from "./forward.ts";
import type { RowRequest } from "./part.ts";
import { encodeInput, type PageTable } from "./input.ts";
import { placeWeights } from "./place_weights.ts";
import { CANDIDATES } from "./results.ts";
import { layOutWeights, type WeightLayout } from "./weights.ts";

/** The target as a drafter sees it. */
export interface DrafterTarget {
  config: ModelConfig;
  weights: TextWeights;
  shared: SharedParts;
}

/** One row of a step: a token that follows `length` tokens whose keys and values the target has. */
export interface DraftRow {
  token: number;
  /** at least 1 */ length: number;
  /** the target's page table of each group */ tables: readonly PageTable[];
  request?: RowRequest;
}

/** What a step gives, row by row. */
export interface DraftResults {
  /** u32 [r · 256] */ ids: Uint32Array;
  /** f32 [r · 256] */ values: Float32Array;
  /** f32 [r · 4] */ stats: Float32Array;
  /** f32 [r · V], where asked for */ logits?: Float32Array;
}

/** Size of a drafter's runs. */
export interface DrafterOptions extends Pick<DrafterPlanOptions, "fuse" | "checkFinite" | "trace"> {
  /** sequences of one step at most; default 1 */ rows?: number;
  /** page table entries of one step at most */ pages: number;
  signal?: AbortSignal;
}

/** See the head of this file. */
export class Drafter implements AsyncDisposable {
  /** of its own weights */ readonly layout: WeightLayout;
  readonly #plan: DrafterPlan;
  readonly #pass: Pass;
  readonly #arena: Buffer;
  readonly #states: Buffer;
  readonly #scope: AsyncDisposableStack;
  /** see `RunOptions.foreseen` */ readonly #foreseen: "look" | undefined;
  #closed = false;

  private constructor(
    readonly config: ModelConfig,
    parts: {
      layout: WeightLayout;
      plan: DrafterPlan;
      pass: Pass;
      arena: Buffer;
      states: Buffer;
      scope: AsyncDisposableStack;
      foreseen: "look" | undefined;
    },
  ) {
    ({ plan: this.#plan, pass: this.#pass, arena: this.#arena, states: this.#states, scope: this.#scope } =
      parts);
    this.layout = parts.layout;
    this.#foreseen = parts.foreseen;
  }

  /**
   * Opens the drafter in `folder` beside its target. Rejects with `CheckpointError` (`drafter_mismatch` where the two do not
   * belong together), `DeviceError` or the signal's reason.
   */
  static async open(folder: string, target: DrafterTarget, options: DrafterOptions): Promise<Drafter> {
    const checkpoint = await openCheckpoint(folder);
    const { config } = checkpoint;
    checkDrafter(config, target.config);
    const weights = checkpoint.weights();
    await checkpoint.checkFinite();
    await using scope = new AsyncDisposableStack();
    const { device, layout: targetLayout, kvFormat, kvPages, kv, weightBuffers, exact } = target.shared;
    const first = firstWeightBuffer(target.config) + targetLayout.buffers.length;
    const layout = layOutWeights(weights, checkpoint.files, first, device.info().weightAlignment);
    const { embedding } = target.weights;
    const { rows = 1, pages, fuse, checkFinite, trace, signal } = options;
    const plan = drafterPlan(config, weights, { config: target.config, embedding }, {
      buffers: [...targetLayout.buffers, ...layout.buffers],
      tensor: (weight: WeightTensor) =>
        weight === embedding ? targetLayout.tensor(weight) : layout.tensor(weight),
    }, {
      limits: { rows, out_rows: rows, sequences: rows, pages },
      kvFormat,
      kvPages,
      exact,
      fuse,
      checkFinite,
      trace,
    });
    const arena = scope.use(device.createBuffer(plan.buffers[0].bytes));
    const own = await placeWeights(device, checkpoint, layout, scope, { signal });
    const states = scope.use(device.createBuffer(plan.buffers[plan.stateBuffer].bytes));
    const bound = [arena, ...kv, ...weightBuffers, ...own, states];
    if (plan.orderingBuffer !== null) {
      const ordering = scope.use(device.createBuffer(plan.buffers[plan.orderingBuffer].bytes));
      ordering.write(
        0,
        await readOrdering(checkpoint, weights.drafter!.tokenOrdering!, config.vocabularySize),
      );
      bound.push(ordering);
    }
    const pass = scope.use(await device.compile(plan, bound));
    return new Drafter(config, {
      layout,
      plan,
      pass,
      arena,
      states,
      scope: scope.move(),
      foreseen: device.kind === "cpu" ? undefined : "look",
    });
  }

  /** Sets the state of row `row`: f32 [B], the target's last hidden state after its final norm. */
  begin(state: Float32Array<ArrayBuffer>, row: number = 0): void {
    this.#check();
    const B = this.#plan.state.shape[1] as number;
    if (state.length !== B) throw new InvalidArgument(`A state has ${B} numbers, not ${state.length}.`);
    this.#states.write(row * B * 4, state);
  }

  /** One guess for each row, which continues from the states that `begin` or the step before left. */
  async step(
    rows: readonly DraftRow[],
    options: { logits?: boolean; signal?: AbortSignal } = {},
  ): Promise<DraftResults> {
    this.#check();
    const V = this.config.vocabularySize;
    const mask = 1 << OUTPUT.ids | 1 << OUTPUT.values | 1 << OUTPUT.stats |
      (options.logits ? 1 << OUTPUT.logits : 0);
    const input = encodeInput({
      rows: rows.map(({ token, length }, sequence) => ({
        token,
        position: length - 1,
        sequence,
        rowClass: "decode",
      })),
      outputs: rows.map(({ request }, row) => ({ ...request, row })),
      sequences: rows.map(({ tables }) => tables),
      groups: this.#plan.groups,
      vocabularySize: V,
      outputMask: mask,
    });
    const count = rows.length;
    const widths = [CANDIDATES, CANDIDATES, 4, ...(options.logits ? [V] : [])];
    const output = new Uint8Array(4 * count * widths.reduce((sum, width) => sum + width, 0));
    await this.#pass.run(input, output, { signal: options.signal, foreseen: this.#foreseen });
    let at = 0;
    const take = (width: number) =>
      new Float32Array(output.buffer, (at += 4 * count * width) - 4 * count * width, count * width);
    const ids = take(CANDIDATES);
    return {
      ids: new Uint32Array(ids.buffer, ids.byteOffset, ids.length),
      values: take(CANDIDATES),
      stats: take(4),
      logits: options.logits ? take(V) : undefined,
    };
  }

  /** f32 [B] the state that row `row` of the last step left: post_projection of its normed output. */
  state(row: number = 0): Float32Array<ArrayBuffer> {
    this.#check();
    const state = new Float32Array(this.#plan.state.shape[1] as number);
    this.#states.read(row * state.byteLength, state);
    return state;
  }

  /** f32 [H] the states between layers of row 0 of the last step; for plans with `trace`. */
  states(): Float32Array<ArrayBuffer>[] {
    this.#check();
    return this.#plan.states.map((tensor) => {
      const state = new Float32Array(tensor.shape[1] as number);
      this.#arena.read(tensor.offset, state);
      return state;
    });
  }

  /** Releases pass and buffers; the target's stay. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    await this.#scope[Symbol.asyncDispose]();
  }

  #check(): void {
    if (this.#closed) throw new Disposed("A drafter");
  }
}

/** The tokens of each centroid as u32. Rejects with `CheckpointError` unless every token is there once. */
async function readOrdering(
  checkpoint: Checkpoint,
  { name, dtype }: IntegerTensor,
  vocabularySize: number,
): Promise<Uint32Array<ArrayBuffer>> {
  const bytes = await checkpoint.readTensor(name);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const seen = new Uint8Array(vocabularySize);
  return Uint32Array.from({ length: vocabularySize }, (_, i) => {
    const token = dtype === "i64" ? Number(view.getBigInt64(8 * i, true)) : view.getInt32(4 * i, true);
    if (token < 0 || token >= vocabularySize || seen[token]++ > 0) {
      throw new CheckpointError(
        "invalid_tensor",
        `Tensor "${name}" has the token ${token} at ${i}; every token from 0 to ${
          vocabularySize - 1
        } must be there once.`,
      );
    }
    return token;
  });
}
