/**
 * Writes a GGUF file of a dense model's shape with random weights: matrices in Q4_0, token embeddings in Q6_K, as the usual
 * 4-bit files have them. It has no vocabulary.
 *
 *     deno run -A bench/synthetic_gguf.ts e2b FILE.gguf
 */
import { ggufNaming } from "../src/checkpoint/gguf_names.ts";
import { GGUF_BLOCKS, type GgufType } from "../src/checkpoint/gguf_types.ts";
import { fillBlocks } from "../src/conformance/blocks.ts";
import { toF16 } from "../src/conformance/oracle/numbers.ts";
import { Random } from "../src/conformance/random.ts";
import { ALIGNMENT, type Value, writeHead } from "../tests/checkpoint/gguf_writer.ts";
import { addText, isFull, type Shape, shapes } from "./synthetic.ts";

const F32 = 0, F16 = 1;
const WEIGHT = 0.02; // standard deviation
const POOL_BLOCKS = 1 << 15;
/** Pairs of a full layer's head that turn: a quarter. */
const TURNED = 1 / 4;

interface Entry {
  name: string;
  shape: number[];
  type: number;
  bytes: number;
  /** whole blocks, repeated */ pool: Uint8Array;
}

/** Every tensor of a model of this shape. */
function entries(shape: Shape): Entry[] {
  const random = new Random(20260101);
  const pools = new Map<GgufType, Uint8Array>();
  const { nameOf } = ggufNaming([]);
  const list: Entry[] = [];
  const add = (
    name: string,
    dims: number[],
    type: number,
    bytesOf: (count: number) => number,
    pool: Uint8Array,
  ) =>
    list.push({
      name: nameOf(name),
      shape: dims,
      type,
      bytes: bytesOf(dims.reduce((a, b) => a * b, 1)),
      pool,
    });
  const blocks = (name: string, dims: number[], type: GgufType) => {
    const { number, elements, bytes } = GGUF_BLOCKS[type];
    let pool = pools.get(type);
    if (pool === undefined) {
      pools.set(type, pool = new Uint8Array(bytes * POOL_BLOCKS));
      fillBlocks(type, pool, WEIGHT, random);
    }
    add(name, dims, number, (count) => count / elements * bytes, pool);
  };
  const numbers = (name: string, values: Float32Array) =>
    add(name, [values.length], F32, (count) => 4 * count, new Uint8Array(values.buffer));
  const near = (count: number, mean: number, spread: number) =>
    Float32Array.from({ length: count }, () => random.uniform(mean - spread, mean + spread));
  addText(shape, {
    norm: (name, width) => numbers(`${name}.weight`, near(width, 1, 0.1)),
    values: (name, dims, mean, spread) => numbers(name, near(dims[0], mean, spread)),
    matrix(name, rows, columns) {
      const dims = [...rows, columns];
      if (name === "per_layer_model_projection") {
        const halves = Uint16Array.from({ length: columns * 64 }, () => toF16(random.normal(0, WEIGHT)));
        add(`${name}.weight`, dims, F16, (count) => 2 * count, new Uint8Array(halves.buffer));
      } else blocks(`${name}.weight`, dims, name === "embed_tokens" ? "q6_k" : "q4_0");
    },
  });
  const pairs = shape.globalHeadDim / 2;
  const factors = Float32Array.from({ length: pairs }, (_, i) => i < pairs * TURNED ? 1 : 1e30);
  numbers("rotary_emb.factors", factors);
  return list;
}

function metadataOf(shape: Shape): [string, Value][] {
  const layers = Array.from({ length: shape.layers }, (_, i) => i);
  const wide = (i: number) => shape.doubleWide && i >= shape.layers - shape.sharedKv;
  const u32 = (value: number): Value => ({ type: "u32", value });
  const f32 = (value: number): Value => ({ type: "f32", value });
  const text = (value: string): Value => ({ type: "string", value });
  const own: Record<string, Value> = {
    vocab_size: u32(shape.vocabulary),
    context_length: u32(131072),
    embedding_length: u32(shape.hidden),
    block_count: u32(shape.layers),
    feed_forward_length: {
      type: "array",
      of: "u32",
      value: layers.map((i) => wide(i) ? 2 * shape.mlp : shape.mlp),
    },
    "attention.head_count": u32(shape.heads),
    "attention.head_count_kv": {
      type: "array",
      of: "u32",
      value: layers.map((i) => isFull(shape, i) ? shape.globalKvHeads ?? shape.kvHeads : shape.kvHeads),
    },
    "attention.layer_norm_rms_epsilon": f32(1e-6),
    "attention.sliding_window": u32(shape.window),
    "attention.sliding_window_pattern": {
      type: "array",
      of: "bool",
      value: layers.map((i) => !isFull(shape, i)),
    },
    "attention.shared_kv_layers": u32(shape.sharedKv),
    "rope.freq_base": f32(1e6),
    "rope.freq_base_swa": f32(1e4),
    embedding_length_per_layer_input: u32(shape.perLayer),
    final_logit_softcapping: f32(30),
  };
  for (const [suffix, size] of [["", shape.globalHeadDim], ["_swa", shape.headDim]] as const) {
    for (const name of ["attention.key_length", "attention.value_length", "rope.dimension_count"]) {
      own[name + suffix] = u32(size);
    }
  }
  return [
    ["general.architecture", text("gemma4")],
    ["general.name", text("random weights")],
    ["general.file_type", u32(GGUF_BLOCKS.q4_0.number)],
    ["general.quantization_version", u32(2)],
    ...Object.entries(own).map(([key, value]): [string, Value] => [`gemma4.${key}`, value]),
    ["tokenizer.ggml.model", text("none")],
  ];
}

/** Writes the file. Throws `RangeError` for shapes with experts. */
export async function writeSyntheticGguf(shape: Shape, path: string): Promise<void> {
  if (shape.experts) throw new RangeError("Files with experts are not written.");
  let end = 0;
  const placed = entries(shape).map((entry) => {
    const offset = end;
    end = Math.ceil((offset + entry.bytes) / ALIGNMENT) * ALIGNMENT;
    return { ...entry, offset };
  });
  using file = await Deno.open(`${path}.partial`, { write: true, create: true, truncate: true });
  const write = async (bytes: Uint8Array) => {
    while (bytes.length > 0) bytes = bytes.subarray(await file.write(bytes));
  };
  await write(writeHead({ metadata: metadataOf(shape) }, placed));
  for (const { bytes, pool } of placed) {
    for (let at = 0; at < bytes; at += pool.length) await write(pool.subarray(0, bytes - at));
    await write(new Uint8Array(-bytes & ALIGNMENT - 1));
  }
  await Deno.rename(`${path}.partial`, path);
}

if (import.meta.main) {
  const [name, path] = Deno.args;
  const shape = name === undefined ? undefined : shapes[name];
  if (shape === undefined || path === undefined) {
    console.error("usage: deno run -A bench/synthetic_gguf.ts e2b|e4b|31b FILE.gguf");
    Deno.exit(2);
  }
  await writeSyntheticGguf(shape, path);
  console.log(`${path}: ${((await Deno.stat(path)).size / 1e9).toFixed(2)} GB`);
}
