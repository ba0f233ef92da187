/** Measures this machine's memory read bandwidth with `native/bandwidth.cpp`, so that a benchmark can quote shares of it. */
import { median } from "./statistics.ts";

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
