/** Runs cases on a device and compares every byte that an op could have touched with what it should be. */
import { encodeInput } from "../engine/input.ts";
import { MarkbaseError } from "../errors.ts";
import type { Plan } from "../schedule/plan.ts";
import type { Tensor } from "../schedule/tensor.ts";
import { codesFault, elementBytes, readElement } from "./oracle/pages.ts";
import { Oracle } from "./oracle/run.ts";
import type { Case } from "./case.ts";
import { difference } from "./compare.ts";
import { POISON, type Problem } from "./problem.ts";

/** Bytes on a device, as far as the runner needs them. */
export interface CaseBuffer extends Disposable {
  /** Fills `destination` from `offset` on. */
  read(offset: number, destination: Uint8Array<ArrayBuffer>): void;
  /** Stores `source` from `offset` on. */
  write(offset: number, source: Uint8Array<ArrayBuffer>): void;
}

/** A compiled plan. */
export interface CasePass extends Disposable {
  /** Runs an input block and copies the selected outputs. */
  run(input: Uint8Array<ArrayBuffer>, output: Uint8Array<ArrayBuffer>): Promise<unknown>;
  /** the kernels that it became, where the device tells */
  info?(): { kernels: readonly { kernel: string }[] };
}

/** Any device; those of `ffi/device.ts` fit. */
export interface CaseDevice {
  /** A buffer of `bytes` bytes. */
  createBuffer(bytes: number): CaseBuffer;
  /** Checks a plan and binds its buffers. */
  compile(plan: Plan, buffers: readonly CaseBuffer[]): Promise<CasePass>;
}

/** One row of the result. */
export interface Row {
  op: string;
  case: string;
  precision: "exact" | "fast";
  /** norm of the difference over norm of the reference, the largest of all outputs */ error: number;
  tolerance: number;
  pass: boolean;
  /** what is wrong, in words, where it is not the error alone */ reason?: string;
  /** the kernels that ran, where the device tells */ kernel?: string;
  /** of the exception, where one was thrown */ code?: string;
}

/** A case with its reference results. */
export interface Prepared {
  case: Case;
  problem: Problem;
  /** of each output of the plan, live rows only */ outputs: Float64Array[];
  /** the KV tensor, where there is one: elements that the run writes, and what they become */
  pages?: { tensor: Tensor; written: Uint32Array; values: Float64Array };
}

/** Single elements may be this many times further off than the norm. */
const ELEMENT_FACTOR = 10;

/** Builds a case and runs the oracle on it. */
export function prepare(testCase: Case): Prepared {
  const problem = testCase.build(true);
  const { plan, buffers, input } = problem;
  const oracle = new Oracle(plan, buffers);
  const [op] = plan.ops;
  const tensor = "kv" in op ? op.kv.pages : undefined;
  const before = tensor && oracle.pages(tensor).slice();
  const outputs = oracle.run(input);
  if (!tensor || !before) return { case: testCase, problem, outputs };
  const after = oracle.pages(tensor);
  const written: number[] = [];
  for (let i = 0; i < after.length; i++) if (!Object.is(after[i], before[i])) written.push(i);
  const pages = {
    tensor,
    written: Uint32Array.from(written),
    values: Float64Array.from(written, (i) => after[i]),
  };
  return { case: testCase, problem, outputs, pages };
}

/** Runs one case in one precision. Failures of the device become rows, not exceptions. */
export async function runCase(device: CaseDevice, prepared: Prepared, exact: boolean): Promise<Row> {
  const { op, name, tolerance } = prepared.case;
  const precision = exact ? "exact" : "fast";
  const row: Omit<Row, "error" | "pass"> = { op, case: name, precision, tolerance: tolerance[precision] };
  const { rows } = prepared.problem.input;
  const compiled = (pass: CasePass) => {
    // A device tells the kernels of a run with one decode row; those of other runs are told by the case alone.
    if (rows.length > 1 || rows[0].rowClass !== "decode") return;
    const kernels = pass.info?.().kernels.map(({ kernel }) => kernel).filter((kernel) => kernel !== "");
    if (kernels?.length) row.kernel = [...new Set(kernels)].join(", ");
  };
  try {
    const buffers = await execute(device, prepared.problem, exact, compiled);
    const { error, worst, reason } = judge(prepared, buffers);
    const far = worst > ELEMENT_FACTOR * row.tolerance
      ? `one element is off by ${worst.toExponential(1)}`
      : undefined;
    const pass = error <= row.tolerance && !far && !reason;
    return { ...row, error, pass, reason: reason ?? far };
  } catch (failure) {
    const reason = failure instanceof Error ? failure.message : String(failure);
    const code = failure instanceof MarkbaseError ? failure.code : "unknown";
    return { ...row, error: Infinity, pass: false, reason, code };
  }
}

/** Runs a problem and returns what all its buffers hold afterwards, the copied outputs last; `compiled` sees the pass before. */
export async function execute(
  device: CaseDevice,
  { plan, buffers, input }: Problem,
  exact: boolean,
  compiled?: (pass: CasePass) => void,
): Promise<Uint8Array<ArrayBuffer>[]> {
  using scope = new DisposableStack();
  const bound = buffers.map((bytes) => {
    const buffer = scope.use(device.createBuffer(bytes.length));
    buffer.write(0, bytes);
    return buffer;
  });
  const pass = scope.use(await device.compile({ ...plan, exact }, bound));
  compiled?.(pass);
  const bytes = plan.outputs.reduce((sum, tensor) => sum + liveBytes(tensor, { plan, buffers, input }), 0);
  const copied = new Uint8Array(bytes).fill(POISON);
  await pass.run(encodeInput(input), copied);
  const after = buffers.map((bytes, i) => {
    const read = new Uint8Array(bytes.length);
    bound[i].read(0, read);
    return read;
  });
  return [...after, copied];
}

/** Bytes of the live rows of an output; its elements have four. */
function liveBytes(tensor: Tensor, { input }: Problem): number {
  const rows = tensor.shape[0] === "out_rows" ? input.outputs.length : input.rows.length;
  return rows * (tensor.shape[1] as number) * 4;
}

/** Compares what a run left behind with the reference. Puts back what the run had to write and then looks for the rest. */
function judge(
  { problem, outputs, pages }: Prepared,
  after: Uint8Array<ArrayBuffer>[],
): { error: number; worst: number; reason?: string } {
  const { plan, buffers } = problem;
  const [arena, copied] = [after[0], after[after.length - 1]];
  let [error, worst, at] = [0, 0, 0];
  let reason: string | undefined;
  const add = (actual: ArrayLike<number>, reference: ArrayLike<number>) => {
    const found = difference(actual, reference);
    error = Math.max(error, found.error);
    worst = Math.max(worst, found.worst);
  };
  plan.outputs.forEach((tensor, i) => {
    const bytes = liveBytes(tensor, problem);
    const live = arena.slice(tensor.offset, tensor.offset + bytes);
    if (!equal(live, copied.subarray(at, at + bytes))) {
      reason ??= `the copy of ${tensor.name} differs from the arena`;
    }
    at += bytes;
    arena.fill(POISON, tensor.offset, tensor.offset + bytes);
    if (tensor.format.kind === "f32") return add(new Float32Array(live.buffer), outputs[i]);
    const found = new Uint32Array(live.buffer);
    const wrong = found.findIndex((value, n) => value !== outputs[i][n]);
    if (wrong >= 0) reason ??= `${tensor.name}[${wrong}] is ${found[wrong]}, not ${outputs[i][wrong]}`;
  });
  if (pages) {
    const { tensor, written, values } = pages;
    add(Float64Array.from(written, (i) => readElement(tensor, after, i)), values);
    if (tensor.format.kind === "i8") reason ??= codesFault(tensor, after, written, values);
    for (const i of written) {
      for (const byte of elementBytes(tensor, i)) {
        after[tensor.buffer][tensor.offset + byte] = buffers[tensor.buffer][tensor.offset + byte];
      }
    }
  }
  buffers.forEach((before, i) => {
    if (equal(after[i], before)) return;
    const byte = before.findIndex((value, n) => value !== after[i][n]);
    reason ??= `byte ${byte} of the ${plan.buffers[i].name} was written`;
  });
  return { error, worst, reason };
}

/** Whether two byte arrays are the same. */
export function equal(a: Uint8Array, b: Uint8Array): boolean {
  if (a.length !== b.length) return false;
  let i = 0;
  if (a.byteOffset % 4 === 0 && b.byteOffset % 4 === 0) { // a case may have megabytes
    const [x, y] = [a, b].map((bytes) => new Int32Array(bytes.buffer, bytes.byteOffset, bytes.length >> 2));
    for (let word = 0; word < x.length; word++) if (x[word] !== y[word]) return false;
    i = 4 * x.length;
  }
  for (; i < a.length; i++) if (a[i] !== b[i]) return false;
  return true;
}
