/** The runner against a device that is the oracle itself, whole and with planted faults. */
import { assert, assertEquals, assertStringIncludes } from "@std/assert";
import { decodeInput } from "./decode.ts";
import type { RunInput } from "../../src/engine/input.ts";
import type { Plan } from "../../src/schedule/plan.ts";
import { toF16 } from "../../src/conformance/oracle/numbers.ts";
import { headDimOf, writeCodes } from "../../src/conformance/oracle/pages.ts";
import { Oracle } from "../../src/conformance/oracle/run.ts";
import { allCases } from "../../src/conformance/cases.ts";
import { difference } from "../../src/conformance/compare.ts";
import {
  type CaseBuffer,
  type CaseDevice,
  prepare,
  type Row,
  runCase,
} from "../../src/conformance/runner.ts";

/** What a faulty device does beside its work: `buffers` after the run, `copied` the outputs. */
type Fault = (state: { plan: Plan; input: RunInput; buffers: Uint8Array[]; copied: Uint8Array }) => void;

/** Stores the oracle's results in the buffers as a device would. */
class OracleDevice implements CaseDevice {
  constructor(readonly fault: Fault = () => {}) {}

  createBuffer(bytes: number): CaseBuffer & { bytes: Uint8Array } {
    const data = new Uint8Array(bytes);
    return {
      bytes: data,
      read: (offset, destination) => destination.set(data.subarray(offset, offset + destination.length)),
      write: (offset, source) => data.set(source, offset),
      [Symbol.dispose]: () => {},
    };
  }

  compile(plan: Plan, bound: readonly CaseBuffer[]) {
    const buffers = (bound as ReturnType<OracleDevice["createBuffer"]>[]).map((buffer) => buffer.bytes);
    const run = (bytes: Uint8Array, copied: Uint8Array) => {
      const input = decodeInput(bytes, plan.groups, plan.vocabularySize);
      const oracle = new Oracle(plan, buffers);
      const outputs = oracle.run(input);
      let at = 0;
      plan.outputs.forEach((tensor, i) => {
        const view = new DataView(buffers[0].buffer, tensor.offset);
        outputs[i].forEach((value, n) =>
          tensor.format.kind === "u32"
            ? view.setUint32(4 * n, value, true)
            : view.setFloat32(4 * n, value, true)
        );
        const live = buffers[0].subarray(tensor.offset, tensor.offset + 4 * outputs[i].length);
        copied.set(live, at);
        at += live.length;
      });
      const [op] = plan.ops;
      if ("kv" in op) {
        const { buffer, offset, format } = op.kv.pages;
        const view = new DataView(buffers[buffer].buffer, offset);
        const pages = oracle.pages(op.kv.pages);
        if (format.kind === "i8") writeCodes(pages, headDimOf(op.kv.pages), buffers[buffer].subarray(offset));
        else {pages.forEach((value, n) => {
            if (Number.isNaN(value)) return;
            if (format.kind === "f16") view.setUint16(2 * n, toF16(value), true);
            else view.setFloat32(4 * n, value, true);
          });}
      }
      this.fault({ plan, input, buffers, copied });
      return Promise.resolve();
    };
    return Promise.resolve({ run, [Symbol.dispose]: () => {} });
  }
}

const cases = allCases();

function find(op: string, words: string) {
  return prepare(cases.find((c) => c.op === op && c.name.includes(words))!);
}

async function failure(op: string, words: string, fault: Fault): Promise<Row> {
  const row = await runCase(new OracleDevice(fault), find(op, words), true);
  assert(!row.pass, `a planted fault in ${op} passed`);
  return row;
}

Deno.test("runner: cases have names of their own and cover every op", () => {
  assertEquals(new Set(cases.map((c) => `${c.op} ${c.name}`)).size, cases.length);
  assertEquals(new Set(cases.map((c) => c.op)).size, 29);
});

Deno.test("runner: the oracle's own results in f32 pass in every op", async () => {
  for (const op of new Set(cases.map((c) => c.op))) {
    const some = cases.filter((c) => c.op === op);
    for (const testCase of some.filter((_, i) => i % 25 === 0)) {
      const row = await runCase(new OracleDevice(), prepare(testCase), true);
      assert(row.pass, `${op} ${testCase.name}: ${row.error} ${row.reason}`);
    }
  }
});

Deno.test("runner: a case builds the same bytes each time", () => {
  for (const op of ["linear", "attention", "candidates"]) {
    const [a, b] = [0, 1].map(() => cases.find((c) => c.op === op)!.build(true));
    assertEquals(a, b);
  }
});

Deno.test("runner: one element off by half is seen even in fast mode", async () => {
  const fault: Fault = ({ plan, buffers }) => {
    const y = new Float32Array(buffers[0].buffer, plan.outputs[0].offset);
    y[17] += 0.5;
  };
  const row = await runCase(new OracleDevice(fault), find("linear", "rows=130"), false);
  assert(row.error < 1e-2 && !row.pass, `error ${row.error}`);
});

Deno.test("runner: an output left unwritten is seen", async () => {
  const row = await failure("rms_norm", "rows=3", ({ plan, buffers }) => {
    buffers[0].fill(0xff, plan.outputs[0].offset + 8, plan.outputs[0].offset + 12);
  });
  assertEquals(row.error, Infinity);
});

Deno.test("runner: a write beside the live rows is seen", async () => {
  const row = await failure("add", "rows=3", ({ plan, buffers }) => {
    const { offset, shape } = plan.outputs[0];
    buffers[0][offset + 3 * (shape[1] as number) * 4] = 0;
  });
  assertStringIncludes(row.reason!, "of the arena");
});

Deno.test("runner: a write to weights or inputs is seen", async () => {
  const row = await failure("linear", "rows=1", ({ buffers }) => buffers[2][300] ^= 1);
  assertStringIncludes(row.reason!, "weights");
});

Deno.test("runner: a wrong token among the candidates is seen", async () => {
  const row = await failure("candidates", "ties V=1000", ({ plan, buffers, copied }) => {
    const ids = new Uint32Array(buffers[0].buffer, plan.outputs[0].offset);
    [ids[3], ids[4]] = [ids[4], ids[3]];
    copied.set(buffers[0].subarray(plan.outputs[0].offset, plan.outputs[0].offset + 1024));
  });
  assertStringIncludes(row.reason!, "ids[3]");
});

Deno.test("runner: a copy that differs from the arena is seen", async () => {
  const row = await failure("gather", "rows=7", ({ copied }) => copied[5] ^= 1);
  assertStringIncludes(row.reason!, "copy");
});

Deno.test("runner: KV written to a wrong slot, or over its history, is seen", async () => {
  const at = (words: string, element: (n: number) => boolean) =>
    failure("attention", words, ({ plan, buffers }) => {
      const [op] = plan.ops;
      assert(op.kind === "attention");
      const values = new Float32Array(buffers[3].buffer, op.kv.pages.offset);
      values[values.findIndex(element)] = 1;
    });
  assertStringIncludes((await at("f32 sequences 300+1d", Number.isNaN)).reason!, "kv0");
  assertStringIncludes((await at("f32 sequences 300+1d", (n) => !Number.isNaN(n))).reason!, "kv0");
});

Deno.test("runner: KV left unwritten is seen", async () => {
  const row = await failure("kv_write", "f32", ({ plan, buffers }) => {
    const [op] = plan.ops;
    assert(op.kind === "kv_write");
    const values = new Float32Array(buffers[3].buffer, op.kv.pages.offset);
    values[values.findIndex((n) => !Number.isNaN(n))] = NaN;
  });
  assertEquals(row.error, Infinity);
});

Deno.test("runner: codes that are off by more than rounding, and scales that are off, are seen", async () => {
  const at = (change: (pages: DataView, token: number) => void) =>
    failure("kv_write", "q8 sequences 0+7 ", ({ plan, buffers }) => {
      const [op] = plan.ops;
      assert(op.kind === "kv_write");
      const { buffer, offset } = op.kv.pages;
      const bytes = buffers[buffer].subarray(offset);
      const heads = bytes.length / (32 * (64 + 4));
      for (let head = 0; head < heads; head++) { // the first head of 64 lanes that holds token 5
        const pages = new DataView(bytes.buffer, bytes.byteOffset + head * 32 * (64 + 4), 32 * (64 + 4));
        if (!Number.isNaN(pages.getFloat32(32 * 64 + 4 * 5, true))) return change(pages, 5);
      }
    });
  const code = await at((pages, token) => pages.setInt8(64 * token, pages.getInt8(64 * token) ^ 2));
  assertStringIncludes(code.reason!, "the code of element");
  const scale = await at((pages, token) => {
    const byte = 32 * 64 + 4 * token;
    pages.setFloat32(byte, pages.getFloat32(byte, true) * 1.0001, true);
  });
  assertStringIncludes(scale.reason!, "the scale of element");
});

Deno.test("runner: an exception of the device becomes a failed row with its words", async () => {
  const row = await failure("embed", "bf16", () => {
    throw new Error("the device is on fire");
  });
  assertEquals([row.reason, row.error], ["the device is on fire", Infinity]);
});

Deno.test("runner: the error is the norm of the difference over the norm of the reference", () => {
  assertEquals(difference([3, 4.5], [3, 4]).error, 0.1);
  assertEquals(difference([0, 0], [0, 0]).error, 0);
  assertEquals(difference([1, 0], [0, 0]).error, Infinity);
  assertEquals(difference([NaN], [1]).error, Infinity);
  assertEquals(difference([1, -Infinity], [1, -Infinity]).error, 0);
  assertEquals(difference([1, -3e38], [1, -Infinity]).error, 0);
  assertEquals(difference([1, 0], [1, -Infinity]).error, Infinity);
});
