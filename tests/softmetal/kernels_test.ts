import { assert, assertEquals } from "@std/assert";
import { fromFileUrl } from "./generator/paths.ts";
import { Gpu, softmetal, withOptions, words } from "./host.ts";

const read = (name: string) =>
  Deno.readTextFileSync(fromFileUrl(new URL(`kernels/${name}`, import.meta.url)));
const SPIKE = read("spike.metal");
const FEATURES = read("features.metal").replace('#include "tile_mma.h"', read("tile_mma.h"));

/** Deterministic numbers in [-1, 1). */
function noise(n: number, seed = 1): Float32Array<ArrayBuffer> {
  let s = seed;
  return Float32Array.from({ length: n }, () => {
    s = (Math.imul(s, 1664525) + 1013904223) >>> 0;
    return s / 2 ** 31 - 1;
  });
}
const half = (x: Float32Array<ArrayBuffer>) => new Float16Array(x);
const bfloat = (x: Float32Array<ArrayBuffer>) =>
  Uint16Array.from(new Uint32Array(x.buffer), (u) => (u + 0x7fff + ((u >>> 16) & 1)) >>> 16);
const fromBfloat = (x: Uint16Array) => new Float32Array(Uint32Array.from(x, (u) => u << 16).buffer);

function near(actual: ArrayLike<number>, expected: ArrayLike<number>, tolerance: number, what: string): void {
  assertEquals(actual.length, expected.length, what);
  for (let i = 0; i < expected.length; i++) {
    const d = Math.abs(actual[i] - expected[i]);
    assert(
      d <= tolerance * Math.max(1, Math.abs(expected[i])),
      `${what}[${i}]: ${actual[i]}, expected ${expected[i]}`,
    );
  }
}

function rmsNorm(gpu: Gpu, weighted: boolean): void {
  const rows = 3, n = 640, x = half(noise(rows * n)), w = half(noise(n, 2));
  const y = gpu.buffer(rows * n * 2);
  const p = gpu.pipeline("rms_norm", { index: 0, value: weighted });
  gpu.run(p, [gpu.buffer(x), weighted ? gpu.buffer(w) : null, y, words(n), words({ float: 1e-6 })], [
    rows,
    1,
    1,
  ], [256, 1, 1]);
  const expected = Array.from(x, (v, i) => {
    const row = x.subarray(Math.floor(i / n) * n, (Math.floor(i / n) + 1) * n);
    const scale = 1 / Math.sqrt(row.reduce((s, a) => s + a * a, 0) / n + 1e-6);
    return v * scale * (weighted ? w[i % n] : 1);
  });
  near(new Float16Array(gpu.read(y)), expected, 2e-3, "rms_norm");
}

function qmv4(gpu: Gpu, name: string, T: Float16ArrayConstructor | Float32ArrayConstructor): void {
  const rows = 24, cols = 512, groups = cols / 64;
  const q = new Uint32Array(noise(rows * cols / 8, 3).map((v) => (v + 1) * 2 ** 31));
  const scales = new T(noise(rows * groups, 4).map((v) => v * 0.02)),
    biases = new T(noise(rows * groups, 5)),
    x = new T(noise(cols, 6));
  const y = gpu.buffer(rows * x.BYTES_PER_ELEMENT);
  const args = [gpu.buffer(q), gpu.buffer(scales), gpu.buffer(biases), gpu.buffer(x), y, words(rows, cols)];
  gpu.run(gpu.pipeline(name), args, [Math.ceil(rows / 8), 1, 1], [64, 1, 1]);
  const expected = Array.from({ length: rows }, (_, r) => {
    let s = 0;
    for (let c = 0; c < cols; c++) {
      const nibble = (q[(r * cols + c) >> 3] >>> (4 * (c & 7))) & 15, g = r * groups + (c >> 6);
      s += (nibble * scales[g] + biases[g]) * x[c];
    }
    return s;
  });
  near(new T(gpu.read(y)), expected, T === Float32Array ? 1e-4 : 4e-3, name);
}

function flashDecode(gpu: Gpu, simdgroups: number): void {
  const H = 4, KV = 2, S = 37, D = 128, scale = D ** -0.5;
  const q = half(noise(H * D, 7)), k = half(noise(KV * S * D, 8)), v = half(noise(KV * S * D, 9));
  const out = gpu.buffer(H * D * 2);
  const bytes = Math.ceil(simdgroups * 130 * 4 / 16) * 16;
  const args = [gpu.buffer(q), gpu.buffer(k), gpu.buffer(v), out, words(H, KV, S, { float: scale })];
  gpu.run(gpu.pipeline("flash_decode"), args, [H, 1, 1], [simdgroups * 32, 1, 1], bytes);
  const expected = new Float64Array(H * D);
  for (let h = 0; h < H; h++) {
    const base = Math.floor(h / (H / KV)) * S * D;
    const score = Array.from({ length: S }, (_, t) => {
      let s = 0;
      for (let d = 0; d < D; d++) s += q[h * D + d] * k[base + t * D + d];
      return Math.exp(s * scale);
    });
    const sum = score.reduce((a, b) => a + b);
    for (let d = 0; d < D; d++) {
      for (let t = 0; t < S; t++) expected[h * D + d] += score[t] / sum * v[base + t * D + d];
    }
  }
  near(new Float16Array(gpu.read(out)), expected, 2e-3, "flash_decode");
}

function dependentDispatches(gpu: Gpu): void {
  const n = 1000, a = noise(n, 10), b = noise(n, 11), p = gpu.pipeline("scale_add_f32");
  const [ba, bb, bc, be] = [gpu.buffer(a), gpu.buffer(b), gpu.buffer(4 * n), gpu.buffer(4 * n)];
  gpu.begin(true);
  gpu.dispatch(p, [ba, bb, bc, words(n)], [8, 1, 1], [128, 1, 1]);
  gpu.barrier();
  gpu.dispatch(p, [bc, bb, be, words(n)], [8, 1, 1], [128, 1, 1]);
  gpu.finish();
  near(new Float32Array(gpu.read(be)), a.map((v, i) => (v * 0.5 + b[i]) * 0.5 + b[i]), 1e-6, "scale_add");
}

function matmul(
  gpu: Gpu,
  kind: string,
  pack: (x: Float32Array<ArrayBuffer>) => ArrayBufferView<ArrayBuffer>,
  unpack: (x: ArrayBufferView<ArrayBuffer>) => ArrayLike<number>,
): void {
  const m = 32, n = 24, k = 40;
  const a = pack(noise(m * k, 12)), b = pack(noise(k * n, 13)), av = unpack(a), bv = unpack(b);
  const out = gpu.buffer(4 * m * n);
  gpu.run(
    gpu.pipeline(`matmul_${kind}`, { index: 0, value: 3 }),
    [gpu.buffer(a), gpu.buffer(b), out, words(m, n, k)],
    [n / 8, m / 16, 1],
    [32, 1, 1],
  );
  const expected = Array.from({ length: m * n }, (_, i) => {
    let s = 0;
    for (let j = 0; j < k; j++) s += av[Math.floor(i / n) * k + j] * bv[j * n + i % n];
    return s;
  });
  near(new Float32Array(gpu.read(out)), expected, 2e-6, `matmul_${kind}`);
}

function simdFunctions(gpu: Gpu): void {
  const x = new Float32Array([...Array(32).keys()]), out = gpu.buffer(19 * 32 * 4);
  gpu.run(gpu.pipeline("simd_functions"), [gpu.buffer(x), out], [1, 1, 1], [32, 1, 1]);
  const y = new Float32Array(gpu.read(out));
  const rows: ((i: number) => number)[] = [
    () => 496,
    () => 31,
    () => 0,
    () => 720,
    (i) => 31 - i,
    (i) => i ^ 5,
    (i) => i < 28 ? i + 4 : 0,
    (i) => i >= 4 ? i - 4 : 0,
    () => 7,
    () => 0,
    (i) => i * (i + 1) / 2,
    (i) => i * (i - 1) / 2,
    () => 31,
    () => 64,
    () => 0,
    () => 3,
    (i) => (i + 3) & 31,
    (i) => (i - 3) & 31,
    () => 96,
  ];
  rows.forEach((f, r) =>
    assertEquals(
      [...y.subarray(r * 32, r * 32 + 32)],
      [...Array(32).keys()].map(f),
      `simd_functions row ${r}`,
    )
  );
}

function transposeTile(gpu: Gpu): void {
  const a = noise(64, 14), out = gpu.buffer(256);
  gpu.run(gpu.pipeline("transpose_tile"), [gpu.buffer(a), out], [1, 1, 1], [32, 1, 1]);
  assertEquals(new Float32Array(gpu.read(out)), a.map((_, i) => a[(i % 8) * 8 + (i >> 3)]));
}

function histogram(gpu: Gpu): void {
  const n = 300, x = Uint32Array.from({ length: n }, (_, i) => (i * 7 + 3) % 50);
  const [bins, sum, extremes] = [
    gpu.buffer(new Uint32Array(16)),
    gpu.buffer(new Float32Array(1)),
    gpu.buffer(new Int32Array([-1000, 1000])),
  ];
  gpu.run(gpu.pipeline("histogram"), [gpu.buffer(x), bins, sum, extremes, words(n)], [5, 1, 1], [64, 1, 1]);
  const expected = new Uint32Array(16);
  x.forEach((v) => expected[v & 15]++);
  assertEquals(new Uint32Array(gpu.read(bins)), expected);
  assertEquals(new Float32Array(gpu.read(sum))[0], x.reduce((a, b) => a + b, 0));
  assertEquals([...new Int32Array(gpu.read(extremes))], [49, 0]);
}

function mathFunctions(gpu: Gpu): void {
  const n = 64, x = noise(n, 15).map((v) => v * 6), out = gpu.buffer(15 * n * 4);
  gpu.run(gpu.pipeline("math_functions", { index: 0, value: 3 }), [gpu.buffer(x), out, words(n)], [1, 1, 1], [
    n,
    1,
    1,
  ]);
  const y = new Float32Array(gpu.read(out)), p = (v: number) => Math.abs(v) + 0.125;
  const even = (v: number) => {
    const r = Math.round(v);
    return Math.abs(v % 1) === 0.5 && r % 2 ? r - 1 : r;
  };
  const pop = (i: number) => i.toString(2).replaceAll("0", "").length;
  const rows: ((v: number, i: number) => number)[] = [
    (v) => Math.exp(v),
    (v) => Math.log(p(v)),
    (v) => Math.sin(v),
    (v) => Math.cos(v),
    (v) => Math.tanh(v),
    (v) => Math.sqrt(p(v)),
    (v) => 1 / Math.sqrt(p(v)),
    (v) => Math.exp(Math.min(1, Math.max(-1, v))),
    (v) => Math.floor(v) + Math.ceil(v) + even(v) + Math.trunc(v) + v - Math.floor(v),
    (v) => p(v) ** 1.5,
    (v) => (v < 0 ? p(v) : v) + Math.sign(v) + Math.max(v, p(v), 0) + (v + p(v)) / 2,
    (_, i) => pop(i) + Math.clz32(i) + ((i * 77) >> 2 & 31) + (i & 15),
    (v) => fromBfloat(bfloat(new Float32Array([v])))[0] + Math.f16round(v) + 0.5,
    (v, i) => -v + 2 ** (i & 3) * 3,
    (v, i) => Math.f16round(v) + Math.f16round(p(v)) + 3 + i,
  ];
  rows.forEach((f, r) => near(y.subarray(r * n, r * n + n), [...x].map(f), 2e-6, `math_functions row ${r}`));
}

const MODES: Record<string, Record<string, string | number>> = {
  "in fast mode": {},
  "with lanes, groups and free dispatches in reverse": { order: "reverse" },
  "in a shuffled order": { order: "shuffle", seed: 7 },
  "in detect mode": { detect: 1 },
  "in detect mode and reverse order": { detect: 1, order: "reverse" },
  "with buffers that start on a page": { page_align: 1 },
};
for (const [mode, options] of Object.entries(MODES)) {
  Deno.test(`every kernel gives the right numbers ${mode}`, () => {
    withOptions(options, () => {
      using spike = new Gpu(SPIKE);
      rmsNorm(spike, true);
      rmsNorm(spike, false);
      qmv4(spike, "qmv4_f16_r4", Float16Array);
      qmv4(spike, "qmv4_f32_r4", Float32Array);
      flashDecode(spike, 8);
      dependentDispatches(spike);
      using features = new Gpu(FEATURES);
      matmul(features, "f32", (x) => x, (x) => x as Float32Array);
      matmul(features, "f16", half, (x) => x as Float16Array);
      matmul(features, "bf16", bfloat, (x) => fromBfloat(x as Uint16Array));
      transposeTile(features);
      simdFunctions(features);
      histogram(features);
      mathFunctions(features);
    });
  });
}

Deno.test("with lowered limits a host that asks the pipeline still gets the right numbers", () => {
  withOptions({ max_threads: 128 }, () => {
    using gpu = new Gpu(SPIKE);
    const p = gpu.pipeline("flash_decode");
    assertEquals([gpu.maxThreads(p), gpu.executionWidth(p)], [128, 32]);
    flashDecode(gpu, gpu.maxThreads(p) / 32);
  });
});

Deno.test("fast math, which the host asks for, changes numbers by rounding only", () => {
  using gpu = new Gpu(SPIKE, { fastMath: true });
  rmsNorm(gpu, true);
  flashDecode(gpu, 4);
});

Deno.test("a library of the same source is compiled once and then comes from the cache", () => {
  new Gpu(SPIKE)[Symbol.dispose]();
  const before = softmetal.counter("kernel_compiles");
  new Gpu(SPIKE)[Symbol.dispose]();
  assertEquals(softmetal.counter("kernel_compiles"), before);
});
