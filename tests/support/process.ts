/** What the process itself takes, what other programs it has, and runs of Deno beside it. */
import { buildLibrary } from "../../dylib/build.ts";

/** How a process ended and what it wrote. */
export interface Outcome {
  code: number;
  stdout: string;
  stderr: string;
}

/** Runs Deno with these arguments, and `input` on its standard input, to the end. */
export async function deno(
  args: readonly string[],
  { input = "", env = {} }: { input?: string; env?: Record<string, string> } = {},
): Promise<Outcome> {
  const child = new Deno.Command(Deno.execPath(), {
    args: [...args],
    env,
    stdin: "piped",
    stdout: "piped",
    stderr: "piped",
  }).spawn();
  const ended = child.output(); // read meanwhile, so that neither side waits for room in a pipe
  const writer = child.stdin.getWriter();
  await writer.write(new TextEncoder().encode(input)).catch(() => {}); // it may have ended without reading
  await writer.close().catch(() => {});
  const { code, stdout, stderr } = await ended;
  return { code, stdout: new TextDecoder().decode(stdout), stderr: new TextDecoder().decode(stderr) };
}

let library: Promise<unknown> | undefined;

/**
 * Runs the command line of this tree with these arguments. The library is there before, and Deno is quiet: on standard error the one
 * would tell that it is compiled, the other what it downloads.
 */
export async function markbase(args: readonly string[], input = ""): Promise<Outcome> {
  await (library ??= buildLibrary());
  const main = new URL("../../src/cli/main.ts", import.meta.url).pathname;
  return await deno(["run", "-A", "--quiet", main, ...args], { input, env: { NO_COLOR: "1" } });
}

/** Resident bytes without the JavaScript heap, whose size follows the collector's moods. */
export function nativeBytes(): number {
  const { rss, heapTotal } = Deno.memoryUsage();
  return rss - heapTotal;
}

/** Whether there is an `ffmpeg` on the PATH. */
export async function hasFfmpeg(): Promise<boolean> {
  try {
    return (await new Deno.Command("ffmpeg", { args: ["-version"], stdout: "null", stderr: "null" }).output())
      .success;
  } catch {
    return false;
  }
}
