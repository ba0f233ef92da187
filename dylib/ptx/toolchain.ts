/** The clang that compiles kernels, and how it is called. */

/** A compiler with the shim that stands for Metal's standard library. */
export interface Toolchain {
  /** command or path */
  clang: string;
  /** include folders, each with a final slash; the first is the shim itself */
  shim: readonly string[];
}

/** Result of one compiler run. */
export interface Run {
  ok: boolean;
  stdout: string;
  stderr: string;
}

/** Runs clang with `args` and `input` on its standard input. */
export async function runClang(command: string, args: string[], input?: string): Promise<Run> {
  const child = new Deno.Command(command, {
    args,
    stdin: input === undefined ? "null" : "piped",
    stdout: "piped",
    stderr: "piped",
  }).spawn();
  // Both ways at once: a compiler that writes much before it has read all would wait for ever.
  const output = child.output();
  if (input !== undefined) {
    const writer = child.stdin.getWriter();
    // A compiler that stops early closes the pipe; its message says why.
    await writer.write(new TextEncoder().encode(input)).catch(() => {});
    await writer.close().catch(() => {});
  }
  const { success, stdout, stderr } = await output;
  const text = new TextDecoder();
  return { ok: success, stdout: text.decode(stdout), stderr: text.decode(stderr) };
}

/** Flags that every target shares. */
export function commonFlags(tools: Toolchain): string[] {
  return [
    "-x",
    "c++",
    "-nostdinc",
    ...tools.shim.flatMap((folder) => ["-isystem", folder]),
    "-Wno-unknown-attributes",
    "-Wno-duplicate-decl-specifier",
    "-fno-color-diagnostics",
  ];
}
