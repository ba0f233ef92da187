/** The oracle against values worked out by hand and against identities. */
import { assert, assertAlmostEquals, assertEquals, assertThrows } from "@std/assert";
import { NO_PAGE } from "../../src/engine/input.ts";
import { geluMul, geluTanh, softcap } from "../../src/conformance/oracle/activation.ts";
import { attend, attention, type KvView, kvWrite } from "../../src/conformance/oracle/attention.ts";
import { candidates, logSumExp, NO_TOKEN } from "../../src/conformance/oracle/candidates.ts";
import { embed, gather, perLayerInputs } from "../../src/conformance/oracle/embed.ts";
import { linear, matmul } from "../../src/conformance/oracle/linear.ts";
import { add, rmsNorm } from "../../src/conformance/oracle/norm.ts";
import { fromBf16, fromF16, toBf16, toF16 } from "../../src/conformance/oracle/numbers.ts";
import { codesOf, readPages, storedHead, writeCodes } from "../../src/conformance/oracle/pages.ts";
import { rope } from "../../src/conformance/oracle/rope.ts";
import { readRow, readTensor } from "../../src/conformance/oracle/weights.ts";

const f64 = (...values: number[]) => Float64Array.from(values);

function close(actual: ArrayLike<number>, expected: ArrayLike<number>, tolerance = 1e-12) {
  assertEquals(actual.length, expected.length);
  for (let i = 0; i < expected.length; i++) {
    assertAlmostEquals(actual[i], expected[i], tolerance, `lane ${i}`);
  }
}

Deno.test("oracle: the norm divides by the root of the mean square and multiplies by the weight as it is", () => {
  const root = Math.sqrt(12.5);
  close(rmsNorm(f64(3, 4), undefined, 2, 0), [3 / root, 4 / root]);
  close(rmsNorm(f64(3, 4), f64(2, -0.5), 2, 0), [6 / root, -2 / root]);
});

Deno.test("oracle: the norm's epsilon is added to the mean, inside the root", () => {
  close(rmsNorm(f64(1e-3, -1e-3), undefined, 2, 1e-6), [1e-3 / Math.sqrt(2e-6), -1e-3 / Math.sqrt(2e-6)]);
});

Deno.test("oracle: the norm works on each group of columns and scales its input first", () => {
  close(rmsNorm(f64(3, 4, 30, 40), f64(1, 2), 2, 0, 7), [
    ...rmsNorm(f64(3, 4), f64(1, 2), 2, 0),
    0.6 * Math.SQRT2,
    1.6 * Math.SQRT2,
  ]);
  close(rmsNorm(f64(3, 4), undefined, 2, 1, 0.1), [0.3 / Math.sqrt(1.125), 0.4 / Math.sqrt(1.125)]);
});

Deno.test("oracle: add scales both terms and then the sum", () => {
  close(add(f64(1, 2), f64(10, 20), 3, 0.5, 2), [16, 32]);
  close(add(f64(1, 2), undefined, 3, 0.5), [3, 6]);
});

Deno.test("oracle: gelu_tanh has the tanh approximation's values", () => {
  close([0, 1, -1, 3, -10].map(geluTanh), [0, 0.8411919906, -0.1588080094, 2.9963626079, 0], 1e-9);
});

Deno.test("oracle: gelu_mul takes the second factor from its column on", () => {
  close(geluMul(f64(1, 1, -1, -1), 2, f64(9, 2, 3, 9, 4, 5), 3, 1), [
    2 * geluTanh(1),
    3 * geluTanh(1),
    4 * geluTanh(-1),
    5 * geluTanh(-1),
  ]);
});

Deno.test("oracle: softcap 30 maps 0, 30, 124 and -1e4 to 0, 22.85, 29.98 and -30", () => {
  close(softcap(f64(0, 30, 124, -1e4), 30), [0, 22.85, 29.98, -30], 5e-3);
});

Deno.test("oracle: a linear is its parts one after another", () => {
  const x = f64(1, -2, 0.5, 3), residual = f64(0.3, 0.1, -1, 2), k = 2;
  const postNorm = f64(0.5, 1.5), preNorm = f64(2, -1), eps = 0.1;
  const matrices = [{ w: f64(1, 2, 3, 4, 5, 6), n: 3, bias: f64(1, 2, 3) }, { w: f64(-1, 1), n: 1 }];
  const { h, y } = linear({
    x,
    k,
    residual,
    postNorm,
    scalar: 0.25,
    preNorm,
    matrices,
    epilogue: { kind: "none" },
    eps,
  });
  close(h, add(residual, rmsNorm(x, postNorm, k, eps), 1, 1, 0.25));
  const u = rmsNorm(h, preNorm, k, eps);
  const [a, b] = matrices.map((matrix) => matmul(u, k, matrix));
  close(y, [a[0], a[1], a[2], b[0], a[3], a[4], a[5], b[1]]);
  close(matmul(f64(1, 10), 2, matrices[0]), [22, 45, 68]);
});

Deno.test("oracle: the epilogues of a linear act on products with their biases", () => {
  const common = { x: f64(1, 10), k: 2, eps: 0 };
  const gate = { w: f64(0.1, 0.02), n: 1, bias: f64(0.7) }; // 0.3 + 0.7
  const up = { w: f64(2, 3), n: 1, bias: f64(-2) }; // 32 - 2
  close(linear({ ...common, matrices: [gate, up], epilogue: { kind: "geglu" } }).y, [30 * geluTanh(1)]);
  close(
    linear({
      ...common,
      matrices: [gate],
      epilogue: { kind: "gelu_mul", other: f64(8, 9), m: 2, column: 1 },
    }).y,
    [9 * geluTanh(1)],
  );
  close(linear({ ...common, matrices: [up], epilogue: { kind: "softcap", cap: 30 } }).y, [30 * Math.tanh(1)]);
});

Deno.test("oracle: rows are found by token and by index", () => {
  const table = f64(1, 2, 3, 4, 5, 6);
  close(embed((token) => table.slice(2 * token, 2 * token + 2), 2, [2, 0, 2], 0.5), [2.5, 3, 0.5, 1, 2.5, 3]);
  close(gather(table, 2, [1, 2]), [3, 4, 5, 6]);
});

Deno.test("oracle: per-layer inputs join the normed projection and the token's row, slice by slice", () => {
  const options = { eps: 0, projectionScale: 0.25, tableScale: 2, outScale: 0.5 };
  close(perLayerInputs(f64(3, 4, 4, 3), () => f64(1, 2, 3, 4), f64(1, 10), [7], options), [
    (0.6 * Math.SQRT2 + 2) / 2,
    (8 * Math.SQRT2 + 4) / 2,
    (0.8 * Math.SQRT2 + 6) / 2,
    (6 * Math.SQRT2 + 8) / 2,
  ]);
});

Deno.test("oracle: RoPE turns lane i with lane i + d/2", () => {
  const [c, s] = [Math.cos(3), Math.sin(3)];
  const turned = rope(f64(1, 0, 0, 0, 0, 0, 1, 0), 2, 4, { theta: 100, rotatedPairs: 1, positionScale: 1 }, [
    3,
  ]);
  close(turned, [c, 0, s, 0, -s, 0, c, 0]);
  const slower = rope(f64(0, 1, 0, 0), 1, 4, { theta: 100, rotatedPairs: 2, positionScale: 0.5 }, [6]);
  close(slower, [0, Math.cos(0.3), 0, Math.sin(0.3)]);
});

Deno.test("oracle: proportional RoPE at position 1000 agrees in all 512 lanes with cos·x + sin·rotate_half(x)", () => {
  const d = 512;
  const x = Float64Array.from({ length: d }, () => 1 / Math.sqrt(d));
  const frequencies = Array.from({ length: d / 2 }, (_, i) => i < 64 ? 1 / Math.pow(1e6, 2 * i / d) : 0);
  const angles = [...frequencies, ...frequencies].map((frequency) => 1000 * frequency);
  const half = [...x.slice(d / 2).map((value) => -value), ...x.slice(0, d / 2)];
  const expected = angles.map((angle, i) => x[i] * Math.cos(angle) + half[i] * Math.sin(angle));
  const y = rope(x, 1, d, { theta: 1e6, rotatedPairs: 64, positionScale: 1 }, [1000]);
  close(y, expected);
  for (let i = 0; i < d; i++) {
    const rotates = i % 256 < 64;
    assertEquals(y[i] !== x[i], rotates, `lane ${i} ${rotates ? "turns" : "stays"}`);
  }
});

function pool(pages: number, planes: number, kvHeads: number, d: number, layer = 0): KvView {
  const values = new Float64Array(pages * planes * kvHeads * 32 * d).fill(NaN);
  return { values, planes, layer, kvHeads, d, stored: (head) => head };
}

Deno.test("oracle: attention over one key returns its value", () => {
  const kv = pool(1, 2, 1, 2);
  const places = [{ position: 0, table: { first: 0, pages: [0] } }];
  kvWrite(kv, f64(5, 6), f64(7, 8), places);
  close(attend(f64(1, 2), kv, { heads: 1, kvHeads: 1, window: null, scoreScale: 1 }, places), [7, 8]);
});

Deno.test("oracle: attention weighs values by the softmax of its scores, query heads in groups per KV head", () => {
  const kv = pool(3, 4, 2, 2, 1);
  const table = { first: 0, pages: [2] };
  const places = [0, 1].map((position) => ({ position, table }));
  kvWrite(kv, f64(2 * Math.log(3), 0, 0, 0, 0, 0, 0, 2 * Math.log(3)), f64(4, 0, 40, 0, 8, 0, 80, 0), places);
  const op = { heads: 4, kvHeads: 2, window: null, scoreScale: 0.5 };
  const y = attend(f64(1, 0, 0, 0, 0, 1, 1, 1), kv, op, [places[1]]);
  close(y, [5, 0, 6, 0, 70, 0, 70, 0]);
});

Deno.test("oracle: a window of w sees the row itself and w - 1 before it, across pages", () => {
  const kv = pool(2, 2, 1, 1);
  const table = { first: 4, pages: [1, 0] };
  const places = Array.from({ length: 64 }, (_, i) => ({ position: 128 + i, table }));
  kvWrite(kv, new Float64Array(64), Float64Array.from({ length: 64 }, (_, i) => i), places);
  const op = { heads: 1, kvHeads: 1, window: 3, scoreScale: 1 };
  close(attend(f64(1, 1), kv, op, [places[33], places[63]]), [32, 62]);
});

Deno.test("oracle: a key without a page is an error, not a zero", () => {
  const places = [{ position: 40, table: { first: 0, pages: [0, NO_PAGE] } }];
  const op = { heads: 1, kvHeads: 1, window: 3, scoreScale: 1 };
  assertThrows(() => attend(f64(1), pool(1, 2, 1, 1), op, places), RangeError, "position");
});

Deno.test("oracle: the attention op is head norms, RoPE, cache write and attention in this order", () => {
  const qkv = f64(1, 2, 3, 4, 0.5, -1, 2, 2, -1, 3, 1, 1, 7, 1, 2, -2, 0.1, 0.2, 1, 5, 0.3, 2, -1, 1);
  const qNorm = f64(1, 2, 0.5, 1), kNorm = f64(2, 1, 1, 0.3), eps = 0.01;
  const turn = { theta: 10, rotatedPairs: 1, positionScale: 1 };
  const places = [0, 1].map((position) => ({ position, table: { first: 0, pages: [0] } }));
  const numbers = { heads: 1, kvHeads: 1, headDim: 4, window: null, scoreScale: 0.7, eps };
  const flags = { ownsKv: true, keysAreValues: false, normValues: true };
  const y = attention(qkv, qNorm, kNorm, pool(1, 2, 1, 4), { ...numbers, ...flags, rope: turn }, places);
  const part = (column: number) =>
    f64(...qkv.slice(column, column + 4), ...qkv.slice(12 + column, 16 + column));
  const kv = pool(1, 2, 1, 4);
  const k = rope(rmsNorm(part(4), kNorm, 4, eps), 1, 4, turn, [0, 1]);
  kvWrite(kv, k, rmsNorm(part(8), undefined, 4, eps), places);
  const q = rope(rmsNorm(part(0), qNorm, 4, eps), 1, 4, turn, [0, 1]);
  close(y, attend(q, kv, numbers, places));

  const raw = attention(
    f64(...qkv.slice(0, 8), ...qkv.slice(12, 20)),
    qNorm,
    kNorm,
    pool(1, 2, 1, 4),
    { ...numbers, ...flags, keysAreValues: true, rope: turn },
    places,
  );
  const shared = pool(1, 2, 1, 4);
  kvWrite(shared, k, rmsNorm(part(4), undefined, 4, eps), places);
  close(raw, attend(q, shared, numbers, places));

  const reader = { ...numbers, ...flags, ownsKv: false, rope: turn };
  const before = shared.values.slice();
  close(attention(part(0), qNorm, undefined, shared, reader, places), raw);
  close(shared.values.filter(Number.isFinite), before.filter(Number.isFinite));
});

Deno.test("oracle: half pages round what they store", () => {
  const kv = { ...pool(1, 2, 1, 1), stored: (head: Float64Array) => storedHead({ kind: "f16" }, head) };
  kvWrite(kv, f64(1 + 2 ** -12), f64(3 + 2 ** -8), [{ position: 0, table: { first: 0, pages: [0] } }]);
  assertEquals([kv.values[0], kv.values[32]], [1, 3 + 2 ** -8]);
});

Deno.test("oracle: pages of codes hold a head's largest value as 127 and round the others to even", () => {
  // multiples of half a scale of 2
  const { scale, codes } = codesOf(f64(254, -254, 3, 5, -3, -5, 0.9, 1.1));
  assertEquals([scale, ...codes], [2, 127, -127, 2, 2, -2, -2, 0, 1]);
  assertEquals(codesOf(f64(0, 0)), { scale: 0, codes: new Int8Array(2) });
  assertEquals([...storedHead({ kind: "i8" }, f64(254, 3, 1.1))], [254, 4, 2]);
});

Deno.test("oracle: after the codes of 32 tokens of a head come their 32 scales", () => {
  const [d, heads] = [4, 2];
  const values = new Float64Array(heads * 32 * d).fill(NaN);
  values.set([127, -1, 0, 2], 5 * d); // token 5 of head 0
  values.set([0.5, 63.5, 1, -63.5], (32 + 31) * d); // token 31 of head 1
  const bytes = new Uint8Array(heads * 32 * (d + 4)).fill(0xff);
  writeCodes(values, d, bytes);
  const view = new DataView(bytes.buffer);
  assertEquals([...new Int8Array(bytes.buffer, 5 * d, d)], [127, -1, 0, 2]);
  assertEquals(view.getFloat32(32 * d + 5 * 4, true), 1);
  const second = 32 * (d + 4);
  assertEquals([...new Int8Array(bytes.buffer, second + 31 * d, d)], [1, 127, 2, -127]);
  assertEquals(view.getFloat32(second + 32 * d + 31 * 4, true), 0.5);
  assertEquals(bytes.filter((byte) => byte === 0xff).length >= bytes.length - 2 * (d + 4), true);
  const tensor = {
    name: "pages",
    format: { kind: "i8" },
    shape: [1, 1, heads, 32, d + 4],
    buffer: 0,
    offset: 0,
  } as const;
  close(
    readPages(tensor, [bytes], { rows: 1, out_rows: 1, sequences: 1, pages: 1 }).filter((x) => !isNaN(x)),
    [
      ...[127, -1, 0, 2],
      ...[0.5, 63.5, 1, -63.5],
    ],
  );
});

Deno.test("oracle: candidates come in descending order, ties by lower id, with adjustments and mask applied", () => {
  const logits = f64(1, -4, 3, 3, 2, -1);
  const { ids, values, stats } = candidates(logits, {
    row: 0,
    temperature: 2,
    mask: Uint32Array.of(0b111101),
    adjustments: [{ id: 0, multiply: 0.5, add: 2.5 }, { id: 4, multiply: 4, add: 0 }, {
      id: 5,
      multiply: 0.5,
      add: 0,
    }],
  });
  assertEquals([...ids.slice(0, 6)], [4, 0, 2, 3, 5, NO_TOKEN]);
  assertEquals([...values.slice(0, 6)], [8, 3, 3, 3, -2, -Infinity]);
  assertEquals(ids.length, 256);
  const raw = Math.log(Math.E + Math.exp(-4) + 2 * Math.exp(3) + Math.exp(2) + Math.exp(-1));
  close(stats, [raw, Math.log(Math.exp(4) + 3 * Math.exp(1.5) + Math.exp(-1)), 8, 0]);
});

Deno.test("oracle: log-sum-exp neither overflows nor loses small terms", () => {
  close([logSumExp(f64(1000, 1000)), logSumExp(f64(-1e30, 0)), logSumExp(f64(-Infinity))], [
    1000 + Math.LN2,
    0,
    -Infinity,
  ]);
});

Deno.test("oracle: halves and bfloats round to nearest, ties to even", () => {
  assertEquals([1, -2, 65504, 2 ** -24].map(toF16), [0x3c00, 0xc000, 0x7bff, 1]);
  assertEquals([toF16(1 + 2 ** -11), toF16(1 + 3 * 2 ** -11)], [0x3c00, 0x3c02]);
  assertEquals([1, -2, 39.25].map(toBf16), [0x3f80, 0xc000, 0x421d]);
  assertEquals([toBf16(1 + 2 ** -8), toBf16(1 + 3 * 2 ** -8)], [0x3f80, 0x3f82]);
  for (let bits = 0; bits < 0x7f80; bits++) assert(toBf16(fromBf16(bits)) === bits);
  for (let bits = 0; bits < 0x7c00; bits++) assert(toF16(fromF16(bits)) === bits);
});

Deno.test("oracle: an affine tensor with 3-bit codes reads codes across byte borders", () => {
  const limits = { rows: 1, out_rows: 1, sequences: 1, pages: 1 };
  const codes = Array.from({ length: 64 }, (_, i) => i % 8 ^ (i >> 3));
  const bytes = new Uint8Array(24 + 16);
  codes.forEach((code, i) => {
    for (let b = 0; b < 3; b++) bytes[(3 * i + b) >> 3] |= (code >> b & 1) << ((3 * i + b) & 7);
  });
  const plain = (offset: number) =>
    ({ name: "part", format: { kind: "f32" }, shape: [2, 1], buffer: 0, offset }) as const;
  new DataView(bytes.buffer).setFloat32(24, 0.5, true);
  new DataView(bytes.buffer).setFloat32(28, -2, true);
  new DataView(bytes.buffer).setFloat32(32, 3, true);
  new DataView(bytes.buffer).setFloat32(36, 10, true);
  const tensor = {
    name: "w",
    format: { kind: "affine", bits: 3, group: 32 },
    shape: [2, 32],
    buffer: 0,
    offset: 0,
    scales: plain(24),
    biases: plain(32),
  } as const;
  const expected = codes.map((code, i) => i < 32 ? 0.5 * code + 3 : -2 * code + 10);
  close(readTensor(tensor, [bytes], limits), expected);
  close(readRow(tensor, 1, [bytes], limits), expected.slice(32));
});
