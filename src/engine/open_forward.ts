/** Puts a model's text network on its device: buffers, weights and compiled plans. */
import type { Buffer } from "../../ffi/buffer.ts";
import type { Device } from "../../ffi/device.ts";
import { pagesAtOnce } from "../cache/sequence.ts";
import type { Checkpoint } from "../checkpoint/open.ts";
import { type KvFormat, pageBytes } from "../schedule/groups.ts";
import type { TextPlan } from "../schedule/text.ts";
import type { LoadOptions } from "./api.ts";
import type { Budget } from "./budget.ts";
import { type CompiledPlan, Forward, type ForwardParts } from "./forward.ts";
import type { Internals } from "./load_settings.ts";
import { placeWeights } from "./place_weights.ts";
import { hasBlocks } from "./placed.ts";
import type { Room, TextPlans } from "./text_plans.ts";
import type { WeightLayout } from "./weights.ts";

/** What a forward is opened from. */
export interface OpenForwardOptions
  extends Pick<LoadOptions, "onProgress" | "signal">, Pick<Internals, "keptPrefixes" | "shortSeconds"> {
  device: Device;
  checkpoint: Checkpoint;
  layout: WeightLayout;
  plans: TextPlans;
  kvFormat: KvFormat;
  budget: Pick<Budget, "contextLength" | "kvPages">;
  /** takes all that is made, for a load that fails later */ stack: AsyncDisposableStack;
}

/** A forward, and what else runs on its buffers. */
export interface OpenedForward {
  forward: Forward;
  /** in the order of the layout */ weightBuffers: readonly Buffer[];
  /** page table entries of one sequence at most */ entries: number;
}

/** Seconds that one chunk may take on a GPU, whose watchdog ends long command buffers; runs of a CPU can be cancelled. */
const CHUNK_SECONDS = 0.25;
const LEAST_GPU_ROWS = 16;
const LEAST_CPU_ROWS = 256;

/** Rejects with `DeviceError`, `CheckpointError` or the signal's reason. */
export async function openForward(options: OpenForwardOptions): Promise<OpenedForward> {
  const { device, checkpoint: { config }, layout, plans, kvFormat, budget, stack, signal } = options;
  const { kvPages } = budget;
  const { groups, blockRows, chunkRows, softBytes } = plans;
  const arena = stack.use(device.createBuffer(plans.arenaBytes));
  const kv = groups.map((group, g) =>
    stack.use(device.createBuffer(kvPages[g] * pageBytes(group, kvFormat)))
  );
  const weightBuffers = await placeWeights(device, options.checkpoint, layout, stack, options);
  const soft = softBytes > 0 ? stack.use(device.createBuffer(softBytes)) : undefined;
  const bind = async (plan: TextPlan, room: Buffer): Promise<CompiledPlan> => {
    const bound = [room, ...kv, ...weightBuffers, ...(plan.softBuffer === undefined ? [] : [soft!])];
    return { plan, pass: await device.compile(plan, bound), arena: room };
  };
  const entries = groups.reduce((sum, group) => sum + pagesAtOnce(group, budget.contextLength, blockRows), 0);
  const room: Room = { entries, kvPages };
  const progress = (completed: number) => options.onProgress?.({ stage: "compile", completed, total: 2 });
  progress(0);
  const prefill = await bind(plans.prefill(room), arena);
  stack.use(prefill.pass);
  progress(1);
  const decode = await bind(plans.decode(room), arena);
  stack.use(decode.pass);
  progress(2);
  signal?.throwIfAborted();
  const media: ForwardParts["media"] = soft && {
    soft,
    blocks: hasBlocks(config),
    pad: config.tokens.pad,
    width: config.hiddenSize,
  };
  const forward = new Forward({
    device,
    layout,
    groups,
    kvFormat,
    kvPages,
    kv,
    buffers: [arena, ...kv, ...weightBuffers],
    prefill,
    decode,
    blockRows,
    media,
    compileTrace: async () => {
      const plan = plans.trace(room);
      const arena = device.createBuffer(plan.buffers[0].bytes);
      try {
        return await bind(plan, arena);
      } catch (error) {
        arena[Symbol.dispose]();
        throw error;
      }
    },
    shortSeconds: options.shortSeconds,
    chunkRows,
    chunkSeconds: CHUNK_SECONDS,
    leastChunkRows: Math.min(chunkRows, device.kind === "cpu" ? LEAST_CPU_ROWS : LEAST_GPU_ROWS),
  }, options.keptPrefixes);
  return { forward, weightBuffers, entries };
}
