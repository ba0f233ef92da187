/** Fixture models and their golden values. */
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

/** The small trained model that ships with the project. */
export const TINY = new URL("../../examples/tiny", import.meta.url).pathname;

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

/** The F32 and I32 tensors of a safetensors file. */
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
    if (name === "__metadata__" || dtype !== "F32" && dtype !== "I32") continue;
    const data = bytes.slice(8 + length + range[0], 8 + length + range[1]);
    const values = dtype === "I32"
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
