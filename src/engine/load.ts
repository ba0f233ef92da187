/** `load`: from a source to a model that runs. */
import type { Buffer } from "../../ffi/buffer.ts";
import type { Device, DeviceKind } from "../../ffi/device.ts";
import { stopTokens } from "../chat/reply.ts";
import type { ModelConfig } from "../checkpoint/config.ts";
import { type Checkpoint, openCheckpoint, readConfig } from "../checkpoint/open.ts";
import { type ClipBounds, readClips, type StoredClip, type TowerWeights } from "../checkpoint/towers.ts";
import type { TextWeights } from "../checkpoint/weights.ts";
import { DeviceError, InvalidArgument, MemoryLimit } from "../errors.ts";
import { localSource } from "../hub/source.ts";
import { DECODE_ROWS } from "../schedule/dispatches.ts";
import { type ExplainOptions, explainPlan, type Explanation } from "../schedule/explain.ts";
import { type KvFormat, pageBytes, pageGroups } from "../schedule/groups.ts";
import type { Limits } from "../schedule/plan.ts";
import { firstWeightBuffer, textPlan, type TextPlanOptions } from "../schedule/text.ts";
import { FIRST_TOWER_WEIGHTS } from "../schedule/tower.ts";
import { towerPlan } from "../schedule/tower_plan.ts";
import { unplacedPlan } from "../schedule/unplaced.ts";
import { variantsOf } from "../schedule/variants.ts";
import type { Warning } from "../warning.ts";
import { pagesAtOnce } from "../cache/sequence.ts";
import type { LoadOptions, Model } from "./api.ts";
import { type Budget, DEFAULT_CONTEXT, planBudget } from "./budget.ts";
import { Drafter } from "./drafter.ts";
import { type CompiledPlan, Forward } from "./forward.ts";
import { LoadedModel } from "./model.ts";
import { openDevice } from "./open_device.ts";
import { openText } from "./open_text.ts";
import { checkNames, choice, integer, LOAD_OPTIONS, signalOf } from "./options.ts";
import { hasBlocks, MOST_BLOCK_ROWS } from "./placed.ts";
import { weightsFingerprint } from "./receipt.ts";
import { ModelMedia, readProcessor } from "./media.ts";
import { Towers } from "./towers.ts";
import { placeWeights } from "./place_weights.ts";
import { layOutWeights } from "./weights.ts";

/** What tests turn. */
export interface Internals {
  /** rows of one prefill chunk at most */ chunkRows?: number;
  /** false: the elementary schedule */ fuse?: boolean;
  /** false: no two activations share bytes */ reuse?: boolean;
  /** look for NaN and Inf after each op */ checkFinite?: boolean;
  /** pages of each group that the prefix cache keeps at most; 0 keeps none */ keptPrefixes?: number;
  /** pages of each group, whatever the budget says */ kvPages?: number;
  /** layers times rows of one run of a tower */ towerLayerRows?: number;
}

/** Rows of one prefill chunk at most. */
const CHUNK_ROWS = 512;
/** Prompts that share one forward with decode rows at most. */
const PROMPTS = 16;
/** Bytes that the logits of one forward may take. */
const LOGITS_BYTES = 32 * 2 ** 20;
/** Seconds that one chunk may take on a GPU, whose watchdog ends long command buffers; runs of a CPU can be cancelled. */
const CHUNK_SECONDS = 0.25;
const LEAST_GPU_ROWS = 16;
const LEAST_CPU_ROWS = 256;
/** Share of the device's memory that a model may take unless told otherwise. */
const MEMORY_SHARE = 0.9;
/** A device's own scratch is known only after it compiled the plans; until then, as much as the arena and at least this. */
const LEAST_SCRATCH_BYTES = 8 * 2 ** 20;

/**
 * Loads a model: a folder, a `.safetensors` or `.gguf` file, `"org/name"` on the hub (also `"org/name@revision"` and
 * `"org/name/file"`), or `"tiny"`, the small model that ships with the project. A folder of that name wins over the hub.
 * Weights are mapped, not read. Rejects with `CheckpointError`, `MemoryLimit` before anything large happens, `LibraryError`,
 * `DeviceError`, `HubError`, `UnknownOption`, `InvalidArgument`, `MissingPermission`, or the signal's reason.
 *
 * ```ts
 * using model = await load("tiny");
 * const reply = await model.chat([{ role: "user", content: "What is 2 + 3?" }]);
 * console.log(reply.text);
 * ```
 */
export async function load(source: string | URL, options: LoadOptions = {}): Promise<Model> {
  return await loadWith(source, options, {});
}

/** As `load`; for tests. */
export async function loadWith(
  source: string | URL,
  options: LoadOptions,
  internals: Internals,
): Promise<LoadedModel> {
  const settings = checkOptions(options);
  const { signal } = settings;
  signal?.throwIfAborted();
  const report = options.onProgress;
  const fetching = {
    cache: options.cache,
    signal,
    onProgress: report &&
      ((completed: number, total: number) => report({ stage: "download", completed, total })),
  };
  const local = await localSource(source, fetching);
  const drafterSource = options.drafter === undefined
    ? undefined
    : await localSource(options.drafter, fetching);
  const checkpoint = await openCheckpoint(local.path);
  const weights = checkpoint.weights();
  const towerWeights = checkpoint.towers();
  await checkpoint.checkFinite();
  const clips = await readClips(checkpoint.files, towerWeights);
  const takesMedia = towerWeights.vision !== null || towerWeights.audio !== null;
  const [text, fingerprint] = await Promise.all([
    openText(checkpoint, signal),
    weightsFingerprint(checkpoint),
  ]);
  signal?.throwIfAborted();
  await using stack = new AsyncDisposableStack();
  const { config } = checkpoint;
  const opened = await openDevice(settings.device, {
    ...options,
    precision: settings.precision,
    variants: () => {
      checkGpuCache(settings.kvCache, settings.device);
      return variantsNeeded(config, weights, settings.kvCache, internals.fuse, takesMedia)
        .union(towerVariants(checkpoint, towerWeights, clips));
    },
  });
  const device = stack.use(opened.device);
  const info = device.info();
  const firstBuffer = firstWeightBuffer(config);
  const layout = layOutWeights(
    { weights, towerWeights },
    checkpoint.files,
    firstBuffer,
    info.weightAlignment,
  );
  const chunkRows = internals.chunkRows ?? CHUNK_ROWS;
  // A picture whose tokens see each other is one chunk, however many there are.
  const blockRows = towerWeights.vision !== null && hasBlocks(config)
    ? Math.max(chunkRows, MOST_BLOCK_ROWS)
    : chunkRows;
  const common = {
    kvFormat: settings.kvCache,
    exact: settings.precision === "exact",
    fuse: internals.fuse,
    reuse: internals.reuse,
    checkFinite: internals.checkFinite,
    withState: drafterSource !== undefined,
  };
  const build = (
    variant: "prefill" | "decode",
    limits: Limits,
    kvPages: number[],
    extra?: Partial<TextPlanOptions>,
  ) => {
    const softRows = takesMedia && variant === "prefill" ? blockRows : undefined;
    return textPlan(config, weights, layout, { ...common, variant, limits, kvPages, softRows, ...extra });
  };

  // The arena does not depend on the number of pages, so it is known before the budget is divided.
  const logitRows = Math.floor(LOGITS_BYTES / (config.vocabularySize * 4)) - DECODE_ROWS;
  const outRows = Math.max(1, Math.min(chunkRows, Math.max(16, logitRows)));
  const mixed = (pages: number) =>
    limits(blockRows + DECODE_ROWS, outRows + DECODE_ROWS, DECODE_ROWS + PROMPTS, pages);
  const limits = (rows: number, out: number, sequences: number, pages: number): Limits => ({
    rows,
    out_rows: out,
    sequences,
    pages,
  });
  const groups = pageGroups(config);
  const arenaBytes = Math.max(
    build("prefill", mixed(1), groups.map(() => 1)).buffers[0].bytes,
    build("decode", limits(DECODE_ROWS, DECODE_ROWS, DECODE_ROWS, 1), groups.map(() => 1)).buffers[0].bytes,
  );
  const softBytes = takesMedia ? blockRows * config.hiddenSize * 4 : 0;
  const memory = settings.memory ?? Math.floor(info.memoryBytes * MEMORY_SHARE);
  const budget = planBudget({
    config,
    kvFormat: settings.kvCache,
    weightBytes: layout.weightBytes,
    activationBytes: arenaBytes + softBytes + Math.max(arenaBytes, LEAST_SCRATCH_BYTES),
    contextLength: settings.contextLength,
    memory,
    chunkRows: blockRows,
    maxBufferBytes: info.maxBufferBytes,
  });
  if (internals.kvPages !== undefined) budget.kvPages = groups.map(() => internals.kvPages!);

  const arena = stack.use(device.createBuffer(arenaBytes));
  const kv = groups.map((group, g) =>
    stack.use(device.createBuffer(budget.kvPages[g] * pageBytes(group, settings.kvCache)))
  );
  const weightBuffers = await placeWeights(device, checkpoint, layout, stack, options);
  const entries = groups.reduce((sum, group) => sum + pagesAtOnce(group, budget.contextLength, blockRows), 0);
  const soft = takesMedia ? stack.use(device.createBuffer(softBytes)) : undefined;
  const compile = async (
    variant: "prefill" | "decode",
    size: Limits,
    extra?: Partial<TextPlanOptions>,
    own?: (bytes: number) => Buffer,
  ): Promise<CompiledPlan> => {
    const plan = build(variant, size, budget.kvPages, extra);
    const room = own?.(plan.buffers[0].bytes) ?? arena;
    const bound = [room, ...kv, ...weightBuffers, ...(plan.softBuffer === undefined ? [] : [soft!])];
    return { plan, pass: await device.compile(plan, bound), arena: room };
  };
  const progress = (completed: number) => options.onProgress?.({ stage: "compile", completed, total: 2 });
  progress(0);
  const prefill = await compile("prefill", mixed((DECODE_ROWS + PROMPTS) * entries));
  stack.use(prefill.pass);
  progress(1);
  const decode = await compile(
    "decode",
    limits(DECODE_ROWS, DECODE_ROWS, DECODE_ROWS, DECODE_ROWS * entries),
  );
  stack.use(decode.pass);
  progress(2);
  signal?.throwIfAborted();
  const mappedBytes = layout.weightBytes - layout.copies.reduce((sum, copy) => sum + copy.length, 0);
  checkMemory("The compiled model", device, mappedBytes, memory);
  const { mapped: mappedBefore } = device.memory();

  const isCpu = device.kind === "cpu";
  const forward = new Forward({
    device,
    layout,
    groups,
    kvFormat: settings.kvCache,
    kvPages: budget.kvPages,
    kv,
    buffers: [arena, ...kv, ...weightBuffers],
    prefill,
    decode,
    blockRows,
    media: soft && {
      soft,
      blocks: hasBlocks(config),
      pad: config.tokens.pad,
      width: config.hiddenSize,
    },
    compileTrace: () =>
      compile("decode", limits(1, 1, 1, entries), { trace: true }, (bytes) => device.createBuffer(bytes)),
    chunkRows,
    chunkSeconds: CHUNK_SECONDS,
    leastChunkRows: Math.min(chunkRows, isCpu ? LEAST_CPU_ROWS : LEAST_GPU_ROWS),
  }, internals.keptPrefixes);
  let drafter: Drafter | undefined;
  if (drafterSource !== undefined) {
    drafter = stack.use(
      await Drafter.open(drafterSource.path, { config, weights, shared: forward.shared }, {
        rows: DECODE_ROWS,
        pages: DECODE_ROWS * entries,
        fuse: internals.fuse,
        checkFinite: internals.checkFinite,
        signal,
      }),
    );
    forward.drafter = drafter;
    const drafterBytes = device.memory().mapped - mappedBefore;
    checkMemory("The model with its drafter", device, mappedBytes + drafterBytes, memory);
  }
  const towers = stack.use(
    new Towers({
      config,
      weights: towerWeights,
      clips,
      device,
      layout,
      firstBuffer,
      weightBuffers,
      exact: common.exact,
      checkFinite: internals.checkFinite,
      layerRows: internals.towerLayerRows,
    }),
  );
  const processor = await readProcessor(checkpoint);
  stack.move(); // the model owns all of it now
  return new LoadedModel({
    config,
    weights,
    device,
    forward,
    ...text,
    source: String(source),
    contextLength: budget.contextLength,
    precision: settings.precision,
    kvFormat: settings.kvCache,
    stops: new Set([...config.tokens.eos, ...(text.tokenizer ? stopTokens(text.tokenizer) : [])]),
    warnings: [
      ...local.warnings,
      ...(drafterSource?.warnings ?? []),
      ...opened.warnings,
      ...text.textWarnings,
      ...loadWarnings(checkpoint, settings.contextLength, budget),
    ],
    fingerprint,
    weightBytes: layout.weightBytes,
    mappedBytes,
    copiedBytes: layout.copiedBytes,
    arenaBytes: arenaBytes + softBytes,
    drafter,
    towers,
    media: new ModelMedia(config, processor, towers),
  });
}

/** Explains a source from its configs alone, without weights, library or device. Rejects like `load`. */
export async function explain(source: string | URL, options: ExplainOptions = {}): Promise<Explanation> {
  checkNames(options, ["device", "rows", "context"]);
  const { path } = await localSource(source, { configOnly: true });
  const { config, weights } = await readConfig(path);
  return explainPlan(config, options, weights?.());
}

interface LoadSettings {
  device: "auto" | DeviceKind;
  precision: "exact" | "fast";
  kvCache: KvFormat;
  contextLength: number | undefined;
  memory: number | undefined;
  signal: AbortSignal | undefined;
}

function checkOptions(options: LoadOptions): LoadSettings {
  checkNames(options, LOAD_OPTIONS);
  if (options.onProgress !== undefined && typeof options.onProgress !== "function") {
    throw new InvalidArgument("onProgress must be a function.");
  }
  if (options.cache !== undefined && (typeof options.cache !== "string" || options.cache === "")) {
    throw new InvalidArgument("cache must be the path of a folder.");
  }
  return {
    device: choice("device", options.device, ["auto", "cpu", "metal", "cuda"]) ?? "auto",
    precision: choice("precision", options.precision, ["exact", "fast"]) ?? "fast",
    kvCache: choice("kvCache", options.kvCache, ["f16", "f32", "q8"]) ?? "f16",
    contextLength: integer("contextLength", options.contextLength, 1, 2 ** 31),
    memory: integer("memory", options.memory, 1, Number.MAX_SAFE_INTEGER),
    signal: signalOf(options.signal),
  };
}

/** Throws `MemoryLimit` where mapped weights and what the device holds beside them are more than `memory`. */
function checkMemory(what: string, device: Device, mappedBytes: number, memory: number): void {
  const { buffers, repacked, scratch } = device.memory();
  const needed = mappedBytes + buffers + repacked + scratch;
  if (needed <= memory) return;
  throw new MemoryLimit(
    what,
    needed,
    memory,
    `Of it the device's scratch is ${scratch} bytes, repacked weights ${repacked}. Lower contextLength or raise memory.`,
  );
}

/** Throws `DeviceError` with code `unsupported` for a cache that only the CPU device has kernels for. */
function checkGpuCache(kvFormat: KvFormat, device: LoadSettings["device"]): void {
  if (kvFormat !== "q8") return;
  const name = device === "auto" ? "metal" : device;
  throw new DeviceError(
    "unsupported",
    `kvCache "q8" is there on the cpu device alone; ${name} keeps keys and values as "f16" or "f32". ` +
      `Choose one of these, or device: "cpu".`,
  );
}

/** Every variant of an op that runs of this model may need. */
function variantsNeeded(
  config: ModelConfig,
  weights: TextWeights,
  kvFormat: KvFormat,
  fuse: boolean | undefined,
  takesMedia: boolean,
): Set<string> {
  const ops = (["prefill", "decode"] as const).flatMap((variant) => {
    const options = {
      variant,
      rows: DECODE_ROWS,
      kvFormat,
      fuse,
      takesMedia: takesMedia && variant === "prefill",
    };
    return unplacedPlan(config, weights, options).plan.ops;
  });
  return variantsOf(ops);
}

/** Every variant of an op that runs of its towers may need. */
function towerVariants(
  { config, files }: Checkpoint,
  weights: TowerWeights,
  clips: ReadonlyMap<StoredClip, ClipBounds>,
): Set<string> {
  const places = { ...layOutWeights(weights, files, FIRST_TOWER_WEIGHTS, 1), clips };
  const options = { limits: { rows: 32, out_rows: 16 }, exact: true };
  const ops = (["vision", "audio"] as const).flatMap((part) =>
    weights[part] === null ? [] : towerPlan(part, config, weights, places, options).ops
  );
  return variantsOf(ops);
}

function loadWarnings(checkpoint: Checkpoint, wanted: number | undefined, budget: Budget): Warning[] {
  const warnings: Warning[] = checkpoint.warnings.map(({ code, message }) => ({ code, message }));
  const usual = Math.min(checkpoint.config.contextLength, DEFAULT_CONTEXT);
  if (wanted === undefined && budget.contextLength < usual) {
    warnings.push({
      code: "context_reduced",
      message:
        `The context is ${budget.contextLength} tokens instead of ${usual}, since memory allows no more.`,
    });
  }
  if (wanted !== undefined && wanted > checkpoint.config.contextLength) {
    warnings.push({
      code: "context_beyond_model",
      message:
        `The context of ${wanted} tokens is longer than the ${checkpoint.config.contextLength} that the model was made for.`,
    });
  }
  return warnings;
}
