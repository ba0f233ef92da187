/** Timings of single matrix products with weights that no cache can hold: many layers' worth, one after another. */
import type { Buffer } from "../../ffi/buffer.ts";
import type { Device } from "../../ffi/device.ts";
import { encodeInput } from "../../src/engine/input.ts";
import type { Epilogue, LinearOp } from "../../src/schedule/ops.ts";
import { PlanBuilder, rowBytes } from "../../src/schedule/plan.ts";
import type { Tensor } from "../../src/schedule/tensor.ts";
import { median } from "../statistics.ts";
import type { Shape } from "../synthetic.ts";

/** A product to be timed, in 4 bits. */
interface Product {
  name: string;
  k: number;
  n: number[];
  epilogue?: "geglu" | "softcap" | "gelu_mul";
  /** norm, residual and norm before it, as the schedule has them */ stream?: boolean;
}

/** One timing. */
export interface KernelTiming {
  name: string;
  rows: number;
  /** of the weights of one product */ weightBytes: number;
  /** of distinct weights */ cycledBytes: number;
  /** median device time of one product */ seconds: number;
  /** weight bytes over time */ bytesPerSecond: number;
  kernels: string;
}

/** The products of a layer of each kind and the head. */
export function productsOf(shape: Shape): Product[] {
  const { hidden, mlp, heads, headDim, globalHeadDim, kvHeads, perLayer } = shape;
  // Full layers with KV heads of their own number have keys that are their values.
  const fullKv = shape.globalKvHeads === undefined
    ? [kvHeads * globalHeadDim, kvHeads * globalHeadDim]
    : [shape.globalKvHeads * globalHeadDim];
  const products: Product[] = [
    { name: "gate+up", k: hidden, n: [mlp, mlp], epilogue: "geglu", stream: true },
    { name: "down", k: mlp, n: [hidden] },
    { name: "LM head", k: hidden, n: [shape.vocabulary], epilogue: "softcap", stream: true },
    {
      name: "q/k/v sliding",
      k: hidden,
      n: [heads * headDim, kvHeads * headDim, kvHeads * headDim],
      stream: true,
    },
    { name: "q/k/v full", k: hidden, n: [heads * globalHeadDim, ...fullKv], stream: true },
    { name: "o sliding", k: heads * headDim, n: [hidden] },
    { name: "o full", k: heads * globalHeadDim, n: [hidden] },
  ];
  if (perLayer === 0) return products;
  return [
    ...products,
    { name: "PLE gate", k: hidden, n: [perLayer], epilogue: "gelu_mul", stream: true },
    { name: "PLE projection", k: perLayer, n: [hidden] },
  ];
}

const LEAST_CYCLED = 640e6; // bytes of distinct weights: ten times the cache
const MOST_OPS = 400;
const REPETITIONS = 15;
const GROUP = 64;

/** Times every product of a shape, or those of these names, at the given numbers of rows; up to 16 rows are decode rows. */
export async function timeKernels(
  device: Device,
  shape: Shape,
  rowCounts: readonly number[],
  names?: readonly string[],
): Promise<KernelTiming[]> {
  const timings: KernelTiming[] = [];
  for (const product of productsOf(shape).filter(({ name }) => names?.includes(name) ?? true)) {
    for (const rows of rowCounts) timings.push(await timeProduct(device, product, rows));
  }
  return timings;
}

async function timeProduct(device: Device, product: Product, rows: number): Promise<KernelTiming> {
  const { k, n, stream = false } = product;
  const oneBytes = n.reduce((sum, size) => sum + size * k / 2 + 2 * size * k / GROUP * 2, 0);
  const count = Math.min(MOST_OPS, Math.max(2, Math.ceil(LEAST_CYCLED / oneBytes)));
  const limits = { rows, out_rows: 1, sequences: 1, pages: 1 };
  const builder = new PlanBuilder(limits);
  const weights = new Placement(builder.buffer("weights", 0, false));
  const activations = new Placement(builder.buffer("activations", 0, true));
  const activation = (name: string, width: number): Tensor =>
    activations.place(
      { name, format: { kind: "f32" }, shape: ["rows", width], buffer: 0, offset: 0 },
      rows * width * 4,
    );
  const vector = (name: string, width: number): Tensor =>
    weights.place(
      { name, format: { kind: "bf16" }, shape: [width], buffer: 0, offset: 0 },
      2 * width,
      "near 1",
    );
  const matrix = (name: string, size: number): Tensor => {
    const scale = (part: string): Tensor =>
      weights.place(
        { name: `${name}.${part}`, format: { kind: "bf16" }, shape: [size, k / GROUP], buffer: 0, offset: 0 },
        2 * size * k / GROUP,
        part === "scales" ? "scales" : "biases",
      );
    const format = { kind: "affine", bits: 4, group: GROUP } as const;
    const [scales, biases] = [scale("scales"), scale("biases")];
    return weights.place(
      { name, format, shape: [size, k], buffer: 0, offset: 0, scales, biases },
      size * rowBytes(format, k),
      "codes",
    );
  };
  const x = activation("x", k), residual = activation("residual", k), h = activation("h", k);
  const outputs = product.epilogue === "geglu" ? n[0] : n.reduce((a, b) => a + b);
  const y = activation("y", outputs), other = activation("other", outputs);
  const epilogue: Epilogue = product.epilogue === "softcap"
    ? { kind: "softcap", cap: 30 }
    : product.epilogue === "gelu_mul"
    ? { kind: "gelu_mul", other, column: 0 }
    : { kind: product.epilogue ?? "none" };
  for (let i = 0; i < count; i++) {
    const op: LinearOp = {
      kind: "linear",
      x,
      weights: n.map((size, w) => matrix(`w${i}.${w}`, size)),
      epilogue,
      y,
      eps: 1e-6,
      ...(stream ? { residual, postNorm: vector("post", k), preNorm: vector("pre", k), hOut: h } : {}),
    };
    builder.add(op);
  }
  const plan = builder.finish({ groups: 0, vocabularySize: 1000, exact: false });
  plan.buffers[0].bytes = Math.max(plan.buffers[0].bytes, 256);
  plan.buffers[weights.buffer].bytes = weights.bytes;
  plan.buffers[activations.buffer].bytes = activations.bytes;
  using scope = new DisposableStack();
  const buffers = plan.buffers.map(({ bytes }) => scope.use(device.createBuffer(bytes)));
  weights.fill(buffers[weights.buffer]);
  activations.fill(buffers[activations.buffer]);
  const pass = scope.use(await device.compile(plan, buffers));
  const input = encodeInput({
    rows: Array.from({ length: rows }, (_, position) => ({
      token: 5,
      position,
      sequence: 0,
      rowClass: rows <= 16 ? "decode" : "prefill",
    })),
    outputs: [],
    sequences: [[]],
    groups: 0,
    vocabularySize: 1000,
    outputMask: 0,
  });
  await pass.time(input, 2);
  const seconds = median([...await pass.time(input, REPETITIONS)]) / count;
  return {
    name: product.name,
    rows,
    weightBytes: oneBytes,
    cycledBytes: oneBytes * count,
    seconds,
    bytesPerSecond: oneBytes / seconds,
    kernels: pass.info().kernels[0].kernel,
  };
}

type Content = "codes" | "scales" | "biases" | "near 1" | "normal";

/** Places tensors one after another in a buffer and fills it with values in a natural range. */
class Placement {
  bytes = 0;
  readonly #parts: { offset: number; length: number; content: Content }[] = [];

  constructor(readonly buffer: number) {}

  place(tensor: Tensor, length: number, content: Content = "normal"): Tensor {
    const offset = Math.ceil(this.bytes / 256) * 256;
    this.#parts.push({ offset, length, content });
    this.bytes = offset + length;
    return { ...tensor, buffer: this.buffer, offset };
  }

  fill(buffer: Buffer): void {
    const pool = new Map<Content, Uint8Array<ArrayBuffer>>();
    for (const { offset, length, content } of this.#parts) {
      let source = pool.get(content);
      if (source === undefined) pool.set(content, source = noise(content));
      for (let at = 0; at < length; at += source.length) {
        buffer.write(offset + at, source.subarray(0, Math.min(source.length, length - at)));
      }
    }
  }
}

const NOISE_BYTES = 1 << 22;

/** Random bytes of a kind. */
function noise(content: Content): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(NOISE_BYTES);
  for (let at = 0; at < bytes.length; at += 65536) crypto.getRandomValues(bytes.subarray(at, at + 65536));
  if (content === "codes") return bytes;
  if (content === "normal") {
    const values = new Float32Array(bytes.buffer);
    const words = new Uint32Array(bytes.buffer);
    for (let i = 0; i < values.length; i++) values[i] = (words[i] / 2 ** 32 - 0.5) * 3;
    return bytes;
  }
  const [mean, spread] =
    { scales: [0.0043, 0.0004], biases: [-0.0043 * 7.5, 0.003], "near 1": [1, 0.1] }[content];
  const halves = new Uint16Array(bytes.buffer);
  const value = new DataView(new ArrayBuffer(4));
  const table = Array.from({ length: 256 }, (_, i) => {
    value.setFloat32(0, mean + spread * (i / 127.5 - 1));
    return value.getUint16(0);
  });
  for (let i = 0; i < halves.length; i++) halves[i] = table[halves[i] & 255];
  return bytes;
}
