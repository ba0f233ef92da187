/** The clang that compiles kernels, and how it is called. */
import { fromFileUrl } from "./paths.ts";

/** What must be installed; the first versions that work here are 19 and later. */
export const REQUIREMENT =
  "clang 19 or later (Debian: apt-get install clang-19 llvm-19; or set SOFTMETAL_CLANG)";

const CANDIDATES = ["clang++-19", "clang++-20", "clang++-21", "clang++"];
let found: string | undefined;

/** The compiler's command name. Throws with the packages to install when none is there. */
export async function clang(): Promise<string> {
  if (found) return found;
  const wanted = Deno.env.get("SOFTMETAL_CLANG");
  for (const name of wanted ? [wanted] : CANDIDATES) {
    try {
      const r = await new Deno.Command(name, { args: ["-dumpversion"], stderr: "null" }).output();
      if (Number.parseInt(new TextDecoder().decode(r.stdout)) >= 19) return found = name;
    } catch (e) {
      if (!(e instanceof Deno.errors.NotFound)) throw e;
    }
  }
  throw new Error(`software Metal needs ${REQUIREMENT}`);
}

let shimRoot: string | undefined;

/** Reads the shim from `folder` (with a final slash) instead of the files beside this module: for imports from a URL. */
export function useShim(folder: string): void {
  shimRoot = folder;
}

/** A folder or file of the shim. */
export function shim(name = ""): string {
  return (shimRoot ?? fromFileUrl(new URL("../shim/", import.meta.url))) + name;
}

/** Result of one compiler run. */
export interface Run {
  ok: boolean;
  stdout: string;
  stderr: string;
}

/** Runs clang with `args` and `input` on its standard input. */
export async function runClang(args: string[], input?: string): Promise<Run> {
  const child = new Deno.Command(await clang(), {
    args,
    stdin: input === undefined ? "null" : "piped",
    stdout: "piped",
    stderr: "piped",
  }).spawn();
  if (input !== undefined) {
    const writer = child.stdin.getWriter();
    // A compiler that stops early closes the pipe; its message says why.
    await writer.write(new TextEncoder().encode(input)).catch(() => {});
    await writer.close().catch(() => {});
  }
  const r = await child.output();
  const text = new TextDecoder();
  return { ok: r.success, stdout: text.decode(r.stdout), stderr: text.decode(r.stderr) };
}

/** Flags that every target shares. */
export function commonFlags(): string[] {
  return [
    "-x",
    "c++",
    "-nostdinc",
    "-isystem",
    shim(),
    "-Wno-unknown-attributes",
    "-Wno-duplicate-decl-specifier",
    "-fno-color-diagnostics",
  ];
}
