/** The plans of a model's text network, by the rows that they are compiled for, and the memory that these take. */
import type { ModelConfig } from "../checkpoint/config.ts";
import type { TextWeights } from "../checkpoint/weights.ts";
import { DECODE_ROWS } from "../schedule/dispatches.ts";
import { type PageGroup, pageGroups } from "../schedule/groups.ts";
import type { DeviceKind } from "../../ffi/device.ts";
import type { Limits } from "../schedule/plan.ts";
import { type CpuScratch, cpuScratch } from "../schedule/scratch.ts";
import { type TextPlan, textPlan, type TextPlanOptions } from "../schedule/text.ts";
import { hasBlocks, MOST_BLOCK_ROWS } from "./placed.ts";
import type { WeightLayout } from "./weights.ts";

/** Rows of one prefill chunk at most. */
const CHUNK_ROWS = 512;
/** Prompts that share one forward with decode rows at most. */
const PROMPTS = 16;
/** Bytes that the logits of one forward may take. */
const LOGITS_BYTES = 32 * 2 ** 20;

/** Bytes of scratch that a GPU is guessed to take at least. */
const LEAST_SCRATCH_BYTES = 8 * 2 ** 20;

/** What all plans of a model have in common. */
export interface TextPlanParts
  extends Pick<TextPlanOptions, "kvFormat" | "exact" | "fuse" | "reuse" | "checkFinite" | "withState"> {
  config: ModelConfig;
  weights: TextWeights;
  layout: WeightLayout;
  /** soft tokens may take the place of embeddings */ takesMedia: boolean;
  /** soft tokens of pictures may be among them */ sees: boolean;
  /** rows of one prefill chunk at most; for tests */ chunkRows?: number;
}

/** See the head of this file. */
export class TextPlans {
  readonly #parts: TextPlanParts;
  readonly #outRows: number;
  readonly #cpuScratch: CpuScratch;

  /** Page groups of the KV cache. */
  readonly groups: readonly PageGroup[];
  /** Rows of one prefill chunk at most. */
  readonly chunkRows: number;
  /** The same where a picture is in it, whose tokens see each other and so are one chunk, however many there are. */
  readonly blockRows: number;
  /** Bytes of the arena, whichever plan runs. */
  readonly arenaBytes: number;
  /** Bytes of the soft tokens of one forward. */
  readonly softBytes: number;

  constructor(parts: TextPlanParts) {
    this.#parts = parts;
    const { config, takesMedia, sees, chunkRows = CHUNK_ROWS } = parts;
    this.groups = pageGroups(config);
    this.chunkRows = chunkRows;
    this.blockRows = sees && hasBlocks(config) ? Math.max(chunkRows, MOST_BLOCK_ROWS) : chunkRows;
    const logitRows = Math.floor(LOGITS_BYTES / (config.vocabularySize * 4)) - DECODE_ROWS;
    this.#outRows = Math.max(1, Math.min(chunkRows, Math.max(16, logitRows)));
    this.softBytes = takesMedia ? this.blockRows * config.hiddenSize * 4 : 0;
    // The arena does not depend on the number of pages, so it is known before the budget is divided.
    const one = { entries: 1, kvPages: this.groups.map(() => 1) };
    const all = [this.prefill(one), this.decode(one)];
    this.arenaBytes = Math.max(...all.map(({ buffers }) => buffers[0].bytes));
    const scratch = all.map(cpuScratch);
    this.#cpuScratch = {
      shared: Math.max(...scratch.map(({ shared }) => shared)),
      thread: Math.max(...scratch.map(({ thread }) => thread)),
    };
  }

  /**
   * Bytes of scratch that a device takes for these plans: on the CPU at most, on a GPU a guess, as only the compiled plans tell.
   */
  scratchBytes(kind: DeviceKind, threads: number): number {
    if (kind === "cpu") return this.#cpuScratch.shared + threads * this.#cpuScratch.thread;
    return Math.max(this.arenaBytes, LEAST_SCRATCH_BYTES);
  }

  /** Decode rows first, then rows of prompts. */
  prefill(room: Room): TextPlan {
    return this.#build(
      "prefill",
      {
        rows: this.blockRows + DECODE_ROWS,
        out_rows: this.#outRows + DECODE_ROWS,
        sequences: DECODE_ROWS + PROMPTS,
      },
      room,
    );
  }

  /** Decode rows alone. */
  decode(room: Room): TextPlan {
    return this.#build(
      "decode",
      { rows: DECODE_ROWS, out_rows: DECODE_ROWS, sequences: DECODE_ROWS },
      room,
    );
  }

  /** One decode row, whose states between layers stay readable. */
  trace(room: Room): TextPlan {
    return this.#build("decode", { rows: 1, out_rows: 1, sequences: 1 }, room, true);
  }

  #build(
    variant: "prefill" | "decode",
    limits: Omit<Limits, "pages">,
    { entries, kvPages }: Room,
    trace?: boolean,
  ): TextPlan {
    const { config, weights, layout, takesMedia, kvFormat, exact, fuse, reuse, checkFinite, withState } =
      this.#parts;
    return textPlan(config, weights, layout, {
      kvFormat,
      exact,
      fuse,
      reuse,
      checkFinite,
      withState,
      variant,
      limits: { ...limits, pages: limits.sequences * entries },
      kvPages,
      softRows: takesMedia && variant === "prefill" ? this.blockRows : undefined,
      trace,
    });
  }
}

/** The KV cache that a plan runs on. */
export interface Room {
  /** page table entries of one sequence, all groups together */ entries: number;
  /** pages of each group's buffer */ kvPages: readonly number[];
}
