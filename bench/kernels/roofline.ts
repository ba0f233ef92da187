/** What the memory of a device can do, measured in the same run as the kernels. */
import type { Device } from "../../ffi/device.ts";
import { copyBandwidth, readBandwidth } from "../bandwidth.ts";
import type { KernelCase } from "./cases.ts";
import { KernelProblem } from "./problem.ts";

const WIDTH = 4096;

/** Bytes per second, and how they were measured. */
export interface Roofline {
  bandwidth: number;
  how: string;
}

/**
 * CPU: reads by all threads. GPU: a copy, by a kernel or by the device's own means, whichever is faster; both sides count.
 * `bytes` go through its memory.
 */
export async function roofline(device: Device, bytes: number): Promise<Roofline> {
  const { threads } = device.info();
  if (device.kind === "cpu") {
    return { bandwidth: await readBandwidth(threads), how: `read by ${threads} threads` };
  }
  const rows = Math.ceil(bytes / 2 / 4 / WIDTH);
  const kernel = await kernelCopy(device, rows);
  const own = copyBandwidth(device, rows * WIDTH * 4);
  return kernel > own
    ? { bandwidth: kernel, how: "copied by a kernel" }
    : { bandwidth: own, how: "copied by the device" };
}

async function kernelCopy(device: Device, rows: number): Promise<number> {
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
  return 2 * rows * WIDTH * 4 / await problem.time(10);
}
