/** What every sample plan is made of: sizes, weights and a page pool. */
import { type Plan, PlanBuilder, tensorBytes } from "../../../src/schedule/plan.ts";
import type { KvLayer } from "../../../src/schedule/ops.ts";
import type { Format, Tensor } from "../../../src/schedule/tensor.ts";

// Every extent is different where it can be.
export const LIMITS = { rows: 4, out_rows: 3, sequences: 2, pages: 12 };
export const VOCABULARY = 40;
export const HIDDEN = 64;
export const HEADS = 2;
export const KV_HEADS = 1;
export const HEAD_DIM = 32;
export const POOL_PAGES = 6;
export const F32: Format = { kind: "f32" };
export const AFFINE: Format = { kind: "affine", bits: 4, group: 32 };

/** Places weights one after another in buffer 1, and fills them with small pseudo-random numbers. */
export class Weights {
  bytes = 0;
  #fills: ((bytes: Uint8Array<ArrayBuffer>) => void)[] = [];
  #seed = 1;

  add(name: string, format: Format, shape: number[]): Tensor {
    if (!("group" in format)) return this.#place(name, format, shape);
    const groups = [...shape.slice(0, -1), shape[shape.length - 1] / format.group];
    const scales = this.#place(`${name}.scales`, { kind: format.kind === "affine" ? "bf16" : "i8" }, groups);
    if (format.kind !== "affine") return Object.assign(this.#place(name, format, shape), { scales });
    const biases = this.#place(`${name}.biases`, { kind: "bf16" }, groups);
    return Object.assign(this.#place(name, format, shape), { scales, biases });
  }

  filled(): Uint8Array<ArrayBuffer> {
    const bytes = new Uint8Array(this.bytes);
    for (const fill of this.#fills) fill(bytes);
    return bytes;
  }

  #place(name: string, format: Format, shape: number[]): Tensor {
    const tensor: Tensor = { name, format, shape, buffer: 1, offset: this.bytes };
    const size = tensorBytes(tensor, LIMITS);
    this.bytes += Math.ceil(size / 64) * 64;
    this.#fills.push((bytes) => {
      const view = new DataView(bytes.buffer, tensor.offset, size);
      for (let at = 0; at + 4 <= size; at += 4) {
        this.#seed = Math.imul(this.#seed, 1664525) + 1013904223 >>> 0;
        const value = (this.#seed >>> 8) / 2 ** 25;
        if (format.kind === "f32") view.setFloat32(at, value, true);
        else if (format.kind === "bf16") view.setUint32(at, 0x3c003c00, true); // 1/128 twice
        else if (format.kind === "gguf") view.setUint32(at, 0x24242424, true); // scales of 1/60
        else if (format.kind === "i8") view.setUint32(at, 0x78787878, true); // scale bytes of 2^-7
        else view.setUint32(at, this.#seed, true);
      }
    });
    return tensor;
  }
}

/** A plan with the bytes of its weights. Buffers: arena, weights, page pool. */
export interface Sample {
  plan: Plan;
  weights: Uint8Array<ArrayBuffer>;
}

/** A plan to add ops to, its weights, and a page pool of two layers in group 1, of which ops use the second. */
export function beginSample(): { b: PlanBuilder; w: Weights; kv: KvLayer } {
  const b = new PlanBuilder(LIMITS);
  b.buffer("weights", 0, false);
  const shape = [POOL_PAGES, 4, KV_HEADS, 32, HEAD_DIM];
  const pages: Tensor = { name: "pages", format: F32, shape, buffer: 2, offset: 0 };
  b.buffer("pages", tensorBytes(pages, LIMITS), true);
  return { b, w: new Weights(), kv: { pages, layer: 1, group: 1 } };
}

/** The plan with its weights. */
export function finishSample(b: PlanBuilder, w: Weights, exact: boolean): Sample {
  b.buffers[1].bytes = w.bytes;
  return {
    plan: b.finish({ groups: 2, vocabularySize: VOCABULARY, exact, reuse: false }),
    weights: w.filled(),
  };
}
