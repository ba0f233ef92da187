/** Small plans for the probe (tests/metal/probe/lower.cpp): rows of numbers that are copied and added. */
import { encodeInput } from "../../src/engine/input.ts";
import { type Plan, PlanBuilder } from "../../src/schedule/plan.ts";
import type { Tensor } from "../../src/schedule/tensor.ts";
import type { Device } from "../../ffi/device.ts";
import type { Pass } from "../../ffi/pass.ts";

/** What the cap of a softcap asks of the probe. */
export const PROBE = {
  copy: 1,
  manyThreads: 2,
  absentKernel: 3,
  beyondBuffer: 4,
  stage: 5,
  stageTooLarge: 6,
  throughScratch: 7,
  token: 8,
  stray: 9,
  divide: 10,
  absentFamily: 11,
  noGroups: 12,
} as const;

export const ROWS = 4;
export const COLUMNS = 33; // no multiple of a threadgroup
const LIMITS = { rows: ROWS, out_rows: ROWS, sequences: 1, pages: 1 };

/** Builds plans of adds and probes over activations of ROWS × COLUMNS. */
export class ProbePlan {
  readonly builder = new PlanBuilder(LIMITS);
  #count = 0;

  activation(): Tensor {
    return this.builder.activation(`t${this.#count++}`, ["rows", COLUMNS]);
  }

  /** y by a behaviour of the probe; `x` is what it reads. */
  probe(behaviour: keyof typeof PROBE, x: Tensor): Tensor {
    const y = this.activation();
    this.builder.add({ kind: "softcap", x, y, cap: PROBE[behaviour] });
    return y;
  }

  add(a: Tensor, b: Tensor): Tensor {
    const y = this.activation();
    this.builder.add({ kind: "add", a, b, y, aScale: 1, bScale: 1 });
    return y;
  }

  /** The tokens of the rows as numbers. */
  tokens(): Tensor {
    return this.probe("token", this.activation());
  }

  finish(output: Tensor, options: { reuse?: boolean; checkFinite?: boolean } = {}): Plan {
    this.builder.output(output);
    return this.builder.finish({ groups: 0, vocabularySize: 1000, exact: true, reuse: false, ...options });
  }
}

/** Tokens of the rows that `runProbe` runs. */
export const TOKENS = [3, 14, 15, 92];

/** An input block of `rows` decode rows. */
export function block(rows: number = ROWS): Uint8Array<ArrayBuffer> {
  return encodeInput({
    rows: TOKENS.slice(0, rows).map((token, position) => ({
      token,
      position,
      sequence: 0,
      rowClass: "decode" as const,
    })),
    outputs: [],
    sequences: [[]],
    groups: 0,
    vocabularySize: 1000,
    outputMask: 1,
  });
}

/** Compiles a plan with fresh buffers, besides those that are given by index. */
export async function compileProbe(
  device: Device,
  plan: Plan,
  given: Parameters<Device["compile"]>[1] = [],
): Promise<Pass> {
  const buffers = plan.buffers.map((buffer, i) => given[i] ?? device.createBuffer(buffer.bytes));
  try {
    return await device.compile(plan, buffers); // the pass keeps them
  } finally {
    for (const buffer of buffers) if (!given.includes(buffer)) buffer.close();
  }
}

/** Runs a pass and returns the first number of each row, after checking that a row's numbers are equal. */
export async function firstColumn(pass: Pass, rows: number = ROWS): Promise<number[]> {
  const output = new Float32Array(rows * COLUMNS).fill(-7);
  await pass.run(block(rows), output);
  return Array.from({ length: rows }, (_, r) => {
    const row = output.subarray(r * COLUMNS, (r + 1) * COLUMNS);
    if (!row.every((value) => value === row[0])) throw new Error(`row ${r} is ${row}`);
    return row[0];
  });
}
