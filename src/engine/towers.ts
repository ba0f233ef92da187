/**
 * A model's eyes and ears on its device: pictures and sounds become soft tokens. Their weights lie in the model's weight
 * buffers; a plan is compiled when the first picture or sound comes, and again for a larger one.
 */
import type { Buffer } from "../../ffi/buffer.ts";
import type { Device } from "../../ffi/device.ts";
import type { Pass } from "../../ffi/pass.ts";
import type { ModelConfig } from "../checkpoint/config.ts";
import type { ClipBounds, StoredClip, TowerWeights } from "../checkpoint/towers.ts";
import type { WeightTensor } from "../checkpoint/tensor.ts";
import { Disposed, InvalidArgument, MarkbaseError, MemoryLimit } from "../errors.ts";
import type { AudioFeatures, AudioFrames, ImagePatches, SoftTokens } from "../media/types.ts";
import type { Tensor } from "../schedule/tensor.ts";
import {
  FIRST_TOWER_WEIGHTS,
  TOWER_OUTPUT,
  type TowerPlan,
  type TowerWeightPlaces,
} from "../schedule/tower.ts";
import { type TowerPart, towerPlan } from "../schedule/tower_plan.ts";
import { encodeInput } from "./input.ts";
import { featuresInput, framesInput, imageInput, type TowerInput } from "./tower_inputs.ts";
import { Turns } from "./turns.ts";
import type { WeightLayout } from "./weights.ts";

/** What `Towers` works with; all of it stays the model's. */
export interface TowerParts {
  config: Pick<ModelConfig, "vision" | "audio" | "hiddenSize">;
  weights: TowerWeights;
  /** bounds of every clipped linear of `weights` */ clips: ReadonlyMap<StoredClip, ClipBounds>;
  device: Device;
  /** has the weights of the towers */ layout: WeightLayout;
  /** plan index at which `layout` counts from */ firstBuffer: number;
  /** in the order of the layout */ weightBuffers: readonly Buffer[];
  exact: boolean;
  /** bytes that the model may take, and those of them that are files which the device reads in place */
  memory: { limit: number; readInPlace: number };
  /** look for NaN and Inf after each op; for tests */ checkFinite?: boolean;
  /** layers times rows of one run; default: a few tenths of a second on a slow GPU, one layer on a CPU */ layerRows?:
    number;
}

/** Both outputs of a tower. */
export interface TowerResults {
  /** tokens × the tower's own width, before the projector; audio: of all frames */ tower: SoftTokens;
  /** tokens × hidden size */ soft: SoftTokens;
}

/** A plan with the buffers that it owns. */
interface Compiled extends Disposable {
  plan: TowerPlan;
  /** one for each of its plans; none on a CPU, see `KEEPS_NO_PASSES` */ passes: readonly Pass[];
  /** of the plan's arena, its inputs and the weights, in its order */ buffers: readonly Buffer[];
  inputs: Buffer;
}

/** A GPU's watchdog ends long command buffers. */
const GPU_LAYER_ROWS = 8192;
/** Running streams get their tokens between two runs, and a layer of a tower may take a CPU half a second. */
const CPU_LAYER_ROWS = 1;
/** A pass of a CPU takes less than a millisecond to compile, and its scratch goes with it: each is made for its run alone. */
const KEEPS_NO_PASSES = "cpu";
/** Rows are compiled for in steps, so that pictures of nearly one size share a plan. */
const ROW_STEP = 512;

/** Soft tokens of a picture where the checkpoint does not say, and of 30 s of sound. */
const USUAL_IMAGE_TOKENS = 280;
const LONGEST_SOUND_TOKENS = 750;
/** What a device's own scratch adds to a tower's plan, before it is known. */
const SCRATCH_SHARE = 1 / 8;

/** See the head of this file. */
export class Towers implements AsyncDisposable, Disposable {
  readonly #parts: TowerParts;
  readonly #places: TowerWeightPlaces;
  readonly #turns = new Turns();
  readonly #compiled = new Map<TowerPart, Compiled>();
  /** made for the run under way alone */
  #passing: Pass | undefined;
  #closed = false;

  constructor(parts: TowerParts) {
    this.#parts = parts;
    this.#places = placesOf(parts);
  }

  /** Whether the model can see, and hear. */
  get parts(): { vision: boolean; audio: boolean } {
    const { vision, audio } = this.#parts.weights;
    return { vision: vision !== null, audio: audio !== null };
  }

  /**
   * Soft tokens of a picture, in the order of its grid. Rejects with `InvalidArgument`, `MarkbaseError` (`no_vision` where
   * the model cannot see), `DeviceError`, `Disposed`, or the signal's reason.
   */
  async embedImage(image: ImagePatches, options: { signal?: AbortSignal } = {}): Promise<SoftTokens> {
    return (await this.#run("vision", this.#imageInput(image), false, options.signal)).soft;
  }

  /** Soft tokens of a sound: those of valid frames. Rejects as `embedImage`, code `no_audio`. */
  async embedAudio(
    audio: AudioFeatures | AudioFrames,
    options: { signal?: AbortSignal } = {},
  ): Promise<SoftTokens> {
    return (await this.#run("audio", this.#audioInput(audio), false, options.signal)).soft;
  }

  /** As `embedImage`, with the tower's own output. */
  async imageResults(image: ImagePatches): Promise<TowerResults> {
    return await this.#run("vision", this.#imageInput(image), true, undefined);
  }

  /** As `embedAudio`, with the tower's own output. */
  async audioResults(audio: AudioFeatures | AudioFrames): Promise<TowerResults> {
    return await this.#run("audio", this.#audioInput(audio), true, undefined);
  }

  /** Bytes of activations and inputs of the plans compiled so far. */
  get activationBytes(): number {
    let bytes = 0;
    for (const { plan } of this.#compiled.values()) bytes += plan.bytes.arena + plan.bytes.inputs;
    return bytes;
  }

  /** Ends the run under way, refuses later calls and releases plans and buffers at once or right after it. */
  [Symbol.dispose](): void {
    this.#closed = true;
    this.#passing?.[Symbol.dispose]();
    for (const compiled of this.#compiled.values()) compiled[Symbol.dispose]();
    this.#compiled.clear();
  }

  /** As dispose, and waits for the run under way. */
  async [Symbol.asyncDispose](): Promise<void> {
    this[Symbol.dispose]();
    await this.#turns.idle();
  }

  #imageInput(image: ImagePatches): TowerInput {
    this.#check();
    const { config: { vision }, weights } = this.#parts;
    if (vision === null || weights.vision === null) {
      throw missing("no_vision", "see pictures", "vision", vision);
    }
    return imageInput(vision, image);
  }

  #audioInput(audio: AudioFeatures | AudioFrames): TowerInput {
    this.#check();
    const { config, weights } = this.#parts;
    if (config.audio === null || weights.audio === null) {
      throw missing("no_audio", "hear sounds", "audio", config.audio);
    }
    if (config.audio.kind === "tower") {
      if (!("logMel" in audio)) throw wrongKind("log-mel features", "raw frames");
      return featuresInput(config.audio, audio);
    }
    if (!("samples" in audio)) throw wrongKind("raw frames", "log-mel features");
    return framesInput(config.audio, audio);
  }

  async #run(
    part: TowerPart,
    input: TowerInput,
    withTower: boolean,
    signal: AbortSignal | undefined,
  ): Promise<TowerResults> {
    return await this.#turns.take(signal, async () => {
      this.#check();
      const compiled = await this.#plan(part, input);
      const { plan, inputs } = compiled;
      for (const [name, tensor] of plan.inputs) {
        await inputs.writeAsync(tensor.offset, input.values.get(name)!);
      }
      const outputs = withTower ? [plan.tower, plan.soft] : [plan.soft];
      const rowsOf = ({ shape }: Tensor) => shape[0] === "rows" ? input.rows : input.outRows;
      const sizes = outputs.map((tensor) => rowsOf(tensor) * (tensor.shape[1] as number));
      const values = new Float32Array(sizes.reduce((sum, size) => sum + size, 0));
      const block = (outputMask: number) =>
        encodeInput({
          rows: Array.from({ length: input.rows }, (_, position) => ({
            token: 0,
            position,
            sequence: 0,
            rowClass: "prefill" as const,
          })),
          outputs: Array.from({ length: input.outRows }, (_, row) => ({ row })),
          sequences: [[]],
          groups: 0,
          vocabularySize: 1,
          outputMask,
        });
      const mask = 1 << TOWER_OUTPUT.soft | (withTower ? 1 << TOWER_OUTPUT.tower : 0);
      const silent = block(0);
      for (const index of plan.plans.keys()) {
        signal?.throwIfAborted();
        const isLast = index === plan.plans.length - 1;
        const output = isLast ? new Uint8Array(values.buffer) : new Uint8Array(0);
        await this.#withPass(part, compiled, index, input.rows, async (pass) => {
          await pass.run(isLast ? block(mask) : silent, output, { signal });
        }).catch((error) => {
          this.#check(); // the pass is closed with the model, which is what the caller knows
          throw error;
        });
        this.#check();
      }
      const tower = withTower ? rowsOfValues(values.subarray(0, sizes[0]), plan.tower) : NOTHING;
      const soft = rowsOfValues(values.subarray(withTower ? sizes[0] : 0), plan.soft);
      return { tower, soft: input.kept ? keep(soft, input.kept) : soft };
    });
  }

  /** Works with the pass of one of a part's plans. */
  async #withPass(
    part: TowerPart,
    { plan, passes, buffers }: Compiled,
    index: number,
    rows: number,
    work: (pass: Pass) => Promise<void>,
  ): Promise<void> {
    if (passes.length > 0) return await work(passes[index]);
    await using pass = await this.#parts.device.compile(plan.plans[index], buffers);
    this.#check();
    this.#makeRoom(part, rows, 0); // now that the device's own scratch is known
    this.#passing = pass;
    try {
      await work(pass);
    } finally {
      this.#passing = undefined;
    }
  }

  /** The plan of a part with room for the input. */
  async #plan(part: TowerPart, { rows, outRows }: TowerInput): Promise<Compiled> {
    const present = this.#compiled.get(part);
    if (present) {
      const { limits } = present.plan;
      if (limits.rows >= rows && limits.out_rows >= outRows) return present;
      this.#compiled.delete(part);
      present[Symbol.dispose]();
    }
    const { device, weightBuffers, exact, checkFinite } = this.#parts;
    const limits = { rows: roundedRows(rows), out_rows: roundedOutRows(rows, outRows) };
    const { config, weights } = this.#parts;
    const { layerRows = device.kind === "cpu" ? CPU_LAYER_ROWS : GPU_LAYER_ROWS } = this.#parts;
    const plan = towerPlan(part, config, weights, this.#places, { limits, exact, checkFinite, layerRows });
    this.#makeRoom(part, rows, plan.bytes.arena + plan.bytes.inputs);
    using scope = new DisposableStack();
    const arena = scope.use(device.createBuffer(plan.bytes.arena));
    const inputs = scope.use(device.createBuffer(plan.bytes.inputs));
    const buffers = [arena, inputs, ...weightBuffers];
    const passes: Pass[] = [];
    if (device.kind !== KEEPS_NO_PASSES) {
      for (const each of plan.plans) {
        passes.push(scope.use(await device.compile(each, buffers)));
        this.#check(); // it may have been disposed meanwhile
      }
      this.#makeRoom(part, rows, 0); // now that the device's own scratch is known
    }
    const owned = scope.move();
    const compiled = { plan, passes, buffers, inputs, [Symbol.dispose]: () => owned.dispose() };
    this.#compiled.set(part, compiled);
    return compiled;
  }

  /** Lets go of the plans of other parts where `bytes` more would not fit. Throws `MemoryLimit` where they do not even then. */
  #makeRoom(part: TowerPart, rows: number, bytes: number): void {
    const { device, memory: { limit, readInPlace } } = this.#parts;
    const needed = () => {
      const { buffers, repacked, replaced, scratch } = device.memory();
      return readInPlace - replaced + buffers + repacked + scratch + bytes;
    };
    if (needed() <= limit) return;
    for (const [other, compiled] of this.#compiled) {
      if (other === part) continue;
      compiled[Symbol.dispose]();
      this.#compiled.delete(other);
    }
    if (needed() <= limit) return;
    throw new MemoryLimit(
      `The model with its ${part} tower for ${rows} ${part === "vision" ? "patches" : "frames"}`,
      needed(),
      limit,
      `${
        part === "vision" ? "Use fewer imageTokens" : "Pass a shorter sound"
      }, lower contextLength or raise memory.`,
    );
  }

  #check(): void {
    if (this.#closed) throw new Disposed("A model");
  }
}

/** Bytes that the larger of the towers takes for a usual picture or the longest sound, as far as plans tell. */
export function usualTowerBytes(parts: Omit<TowerParts, "device" | "weightBuffers" | "memory">): number {
  const { config, weights, exact } = parts;
  const { vision, audio } = config;
  const places = placesOf(parts);
  const bytesOf = (part: TowerPart, rows: number, outRows: number) => {
    const { bytes } = towerPlan(part, config, weights, places, {
      limits: { rows: roundedRows(rows), out_rows: roundedOutRows(rows, outRows) },
      exact,
      checkFinite: parts.checkFinite,
      layerRows: parts.layerRows,
    });
    return Math.ceil((bytes.arena + bytes.inputs) * (1 + SCRATCH_SHARE));
  };
  let most = 0;
  if (vision !== null && weights.vision !== null) {
    const tokens = vision.kind === "tower" ? vision.softTokens ?? USUAL_IMAGE_TOKENS : USUAL_IMAGE_TOKENS;
    const rows = vision.kind === "tower" ? tokens * vision.poolingKernelSize ** 2 : tokens;
    most = bytesOf("vision", rows, vision.kind === "tower" ? tokens : 1);
  }
  if (audio !== null && weights.audio !== null) {
    const tokens = LONGEST_SOUND_TOKENS;
    const ofSound = audio.kind === "tower"
      ? bytesOf("audio", 2 * tokens, tokens)
      : bytesOf("audio", tokens, 1);
    most = Math.max(most, ofSound);
  }
  return most;
}

/** Where the towers' weights lie, by the indices that their plans count from. */
function placesOf(
  { layout, firstBuffer, clips }: Pick<TowerParts, "layout" | "firstBuffer" | "clips">,
): TowerWeightPlaces {
  const moved = new Map<WeightTensor, Tensor>();
  const move = (tensor: Tensor | undefined): Tensor | undefined =>
    tensor && {
      ...tensor,
      buffer: tensor.buffer - firstBuffer + FIRST_TOWER_WEIGHTS,
      scales: move(tensor.scales),
      biases: move(tensor.biases),
    };
  return {
    buffers: layout.buffers,
    clips,
    tensor(weight) {
      let tensor = moved.get(weight);
      if (tensor === undefined) moved.set(weight, tensor = move(layout.tensor(weight))!);
      return tensor;
    },
  };
}

const NOTHING: SoftTokens = { values: new Float32Array(0), tokens: 0 };

function roundedRows(rows: number): number {
  return Math.ceil(rows / ROW_STEP) * ROW_STEP;
}

/** Output rows in the proportion that the input has. */
function roundedOutRows(rows: number, outRows: number): number {
  return outRows === 1 ? 1 : Math.ceil(outRows * roundedRows(rows) / rows);
}

function rowsOfValues(values: Float32Array, tensor: Tensor): SoftTokens {
  return { values, tokens: values.length / (tensor.shape[1] as number) };
}

function keep({ values, tokens }: SoftTokens, kept: readonly number[]): SoftTokens {
  if (kept.length === tokens) return { values, tokens };
  const width = values.length / tokens;
  const some = new Float32Array(kept.length * width);
  kept.forEach((row, i) => some.set(values.subarray(row * width, (row + 1) * width), i * width));
  return { values: some, tokens: kept.length };
}

function missing(code: string, verb: string, part: string, config: unknown): MarkbaseError {
  return new MarkbaseError(
    code,
    config === null
      ? `This model cannot ${verb}. Use one that has a ${part} tower.`
      : `This checkpoint has no weights of the ${part} part that its config names. Download a complete one.`,
  );
}

function wrongKind(expected: string, found: string): InvalidArgument {
  return new InvalidArgument(`This model hears ${expected}, not ${found}.`);
}
