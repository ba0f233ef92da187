/** `load`: from a source to a model that runs. */
import type { Device } from "../../ffi/device.ts";
import { checkNames } from "../arguments.ts";
import { stopTokens } from "../chat/reply.ts";
import { type Checkpoint, readConfig } from "../checkpoint/open.ts";
import { MemoryLimit } from "../errors.ts";
import { localSource } from "../hub/source.ts";
import { DECODE_ROWS } from "../schedule/dispatches.ts";
import { EXPLAIN_OPTIONS, type ExplainOptions, explainPlan, type Explanation } from "../schedule/explain.ts";
import { firstWeightBuffer } from "../schedule/text.ts";
import type { Warning } from "../warning.ts";
import type { LoadOptions, Model } from "./api.ts";
import { type Budget, DEFAULT_CONTEXT, planBudget } from "./budget.ts";
import { Drafter } from "./drafter.ts";
import { type Internals, loadSettings } from "./load_settings.ts";
import { ModelMedia } from "./media.ts";
import { LoadedModel } from "./model.ts";
import { neededVariants } from "./needed_variants.ts";
import { openDevice } from "./open_device.ts";
import { openForward } from "./open_forward.ts";
import { readModel } from "./read_model.ts";
import { TextPlans } from "./text_plans.ts";
import { Towers, usualTowerBytes } from "./towers.ts";
import { layOutWeights, readInPlace } from "./weights.ts";

export type { Internals };

/** Share of the device's memory that a model may take unless told otherwise. */
const MEMORY_SHARE = 0.9;
/** Most that weights grow by in a layout of the device's own, which is known only after it compiled the plans. */
const REPACKED_GROWTH = 1 / 32;

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
  const settings = loadSettings(options);
  const { signal } = settings;
  signal?.throwIfAborted();
  const local = await localFiles(source, options);
  const drafterLocal = options.drafter === undefined ? undefined : await localFiles(options.drafter, options);
  const read = await readModel(local.path, signal);
  const { checkpoint, weights, towerWeights, takesMedia, text } = read;
  const { config } = checkpoint;
  await using stack = new AsyncDisposableStack();
  const opened = await openDevice(settings.device, {
    ...options,
    precision: settings.precision,
    variants: () => neededVariants(read, settings, internals),
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
  const exact = settings.precision === "exact";
  const { kvCache: kvFormat } = settings;
  const { fuse, reuse, checkFinite, chunkRows } = internals;
  const plans = new TextPlans({
    config,
    weights,
    layout,
    kvFormat,
    exact,
    fuse,
    reuse,
    checkFinite,
    withState: drafterLocal !== undefined,
    takesMedia,
    sees: towerWeights.vision !== null,
    chunkRows,
  });
  const activationBytes = plans.arenaBytes + plans.softBytes;
  const memory = settings.memory ?? Math.floor(info.memoryBytes * MEMORY_SHARE);
  const towerParts = {
    config,
    weights: towerWeights,
    clips: read.clips,
    layout,
    firstBuffer,
    exact,
    checkFinite,
    layerRows: internals.towerLayerRows,
  };
  const budget = planBudget({
    config,
    kvFormat,
    weightBytes: layout.weightBytes,
    activationBytes: activationBytes + plans.scratchBytes(device.kind, info.threads),
    towerBytes: usualTowerBytes(towerParts),
    unsureBytes: (device.kind === "cpu" ? 0 : plans.arenaBytes) +
      Math.ceil(layout.weightBytes * REPACKED_GROWTH),
    contextLength: settings.contextLength,
    memory,
    chunkRows: plans.blockRows,
    maxBufferBytes: info.maxBufferBytes,
  });
  if (internals.kvPages !== undefined) budget.kvPages = plans.groups.map(() => internals.kvPages!);
  const { forward, weightBuffers, entries } = await openForward({
    ...options,
    device,
    checkpoint,
    layout,
    plans,
    kvFormat,
    budget,
    keptPrefixes: internals.keptPrefixes,
    shortSeconds: internals.shortSeconds,
    stack,
  });
  let inPlace = readInPlace(layout, device.kind);
  checkMemory("The compiled model", device, inPlace, memory);

  let drafter: Drafter | undefined;
  if (drafterLocal !== undefined) {
    const target = { config, weights, shared: forward.shared };
    const size = { rows: DECODE_ROWS, pages: DECODE_ROWS * entries, fuse, checkFinite, signal };
    drafter = stack.use(await Drafter.open(drafterLocal.path, target, size));
    forward.drafter = drafter;
    inPlace += readInPlace(drafter.layout, device.kind);
    checkMemory("The model with its drafter", device, inPlace, memory);
  }
  const towers = new Towers({
    ...towerParts,
    device,
    weightBuffers,
    memory: { limit: memory, readInPlace: inPlace },
  });
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
    matrixUnits: settings.matrixUnits,
    kvFormat,
    stops: new Set([...config.tokens.eos, ...(text.tokenizer ? stopTokens(text.tokenizer) : [])]),
    warnings: [
      ...local.warnings,
      ...(drafterLocal?.warnings ?? []),
      ...opened.warnings,
      ...text.textWarnings,
      ...loadWarnings(checkpoint, settings.contextLength, budget),
    ],
    fingerprint: read.fingerprint,
    layouts: drafter === undefined ? [layout] : [layout, drafter.layout],
    arenaBytes: activationBytes,
    drafter,
    towers,
    media: new ModelMedia(config, read.processor, towers, memory),
  });
}

/** Explains a source from its configs alone, without weights, library or device. Rejects like `load`. */
export async function explain(source: string | URL, options: ExplainOptions = {}): Promise<Explanation> {
  checkNames(options, EXPLAIN_OPTIONS);
  const { path } = await localSource(source, { configOnly: true });
  const { config, weights } = await readConfig(path);
  return explainPlan(config, options, weights?.());
}

/** The files of a source, downloaded where they are missing. */
async function localFiles(
  source: string | URL,
  { cache, signal, onProgress }: LoadOptions,
): ReturnType<typeof localSource> {
  return await localSource(source, {
    cache,
    signal,
    onProgress: onProgress && ((completed, total) => onProgress({ stage: "download", completed, total })),
  });
}

/** Throws `MemoryLimit` where mapped weights and what the device holds beside them are more than `memory`. */
function checkMemory(what: string, device: Device, mappedBytes: number, memory: number): void {
  const { buffers, repacked, replaced, scratch } = device.memory();
  const needed = mappedBytes - replaced + buffers + repacked + scratch;
  if (needed <= memory) return;
  throw new MemoryLimit(
    what,
    needed,
    memory,
    `Of it the device's scratch is ${scratch} bytes, repacked weights ${repacked}. Lower contextLength or raise memory.`,
  );
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
