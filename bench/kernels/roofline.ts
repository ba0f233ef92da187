/** What the memory of a device can do, measured in the same run as the kernels. */
import type { Device } from "../../ffi/device.ts";
import { readBandwidth } from "../bandwidth.ts";
import { median } from "../statistics.ts";
import type { KernelCase } from "./cases.ts";
import { KernelProblem } from "./problem.ts";

/** Bytes of one side of the copy. */
const COPY_BYTES = 256 * 2 ** 20;
const WIDTH = 4096;

/** Bytes per second, and how they were measured. */
export interface Roofline {
  bandwidth: number;
  how: string;
}

/** CPU: reads by all threads. GPU: a copy, by a kernel or by the device's own means, whichever is faster; both sides count. */
export async function roofline(device: Device): Promise<Roofline> {
  const { threads } = device.info();
  if (device.kind === "cpu") {
    return { bandwidth: await readBandwidth(threads), how: `read by ${threads} threads` };
  }
  const kernel = await kernelCopy(device);
  const own = ownCopy(device);
  return kernel > own
    ? { bandwidth: kernel, how: "copied by a kernel" }
    : { bandwidth: own, how: "copied by the device" };
}

async function kernelCopy(device: Device): Promise<number> {
  const rows = COPY_BYTES / 4 / WIDTH;
  const tensor = (name: string) => ({
    name,
    format: { kind: "f32" as const },
    shape: ["rows" as const, WIDTH],
    buffer: 0,
    offset: 0,
  });
  const copy: KernelCase = {
    name: "copy",
    ops: [{ kind: "add", a: tensor("a"), y: tensor("y"), aScale: 1, bScale: 0 }],
    rows,
    context: rows,
    groups: 0,
    pages: 1,
    vocabulary: 1000,
  };
  using problem = await KernelProblem.create(device, copy, 0);
  return 2 * COPY_BYTES / await problem.time(10);
}

function ownCopy(device: Device): number {
  using from = device.createBuffer(COPY_BYTES);
  using to = device.createBuffer(COPY_BYTES);
  const seconds: number[] = [];
  for (let i = 0; i < 12; i++) {
    const started = performance.now();
    to.copy(0, from, 0, COPY_BYTES);
    if (i >= 2) seconds.push((performance.now() - started) / 1e3);
  }
  return 2 * COPY_BYTES / median(seconds);
}
