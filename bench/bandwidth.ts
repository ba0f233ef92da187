/** What memory can do, so that a benchmark can quote shares of it: this machine's by `native/bandwidth.cpp`, a device's by its own copies. */
import type { Device } from "../ffi/device.ts";
import { median } from "./statistics.ts";

/** Copy bandwidth of a device in bytes per second, bytes read and written counted both. */
export function copyBandwidth(device: Device, bytes: number): number {
  using from = device.createBuffer(bytes);
  using to = device.createBuffer(bytes);
  const seconds: number[] = [];
  for (let i = 0; i < 12; i++) {
    const started = performance.now();
    to.copy(0, from, 0, bytes);
    if (i >= 2) seconds.push((performance.now() - started) / 1e3);
  }
  return 2 * bytes / median(seconds);
}

/** Median read bandwidth in bytes per second with `threads` threads. Needs `c++`. */
export async function readBandwidth(threads: number, mebibytes = 1024, repetitions = 5): Promise<number> {
  const folder = await Deno.makeTempDir({ prefix: "markbase-bench-" });
  try {
    const source = new URL("./native/bandwidth.cpp", import.meta.url).pathname;
    await run("c++", ["-O3", "-march=native", "-pthread", source, "-o", `${folder}/bandwidth`]);
    const text = await run(`${folder}/bandwidth`, [threads, mebibytes, repetitions].map(String));
    return median(text.trim().split("\n").map(Number)) * 1e9;
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}

async function run(command: string, args: string[]): Promise<string> {
  const { code, stdout, stderr } = await new Deno.Command(command, { args }).output();
  if (code !== 0) throw new Error(`${command} failed: ${new TextDecoder().decode(stderr)}`);
  return new TextDecoder().decode(stdout);
}
