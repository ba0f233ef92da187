/** The clang that compiles kernels, and how it is called. */
import {
  commonFlags as flagsOf,
  type Run,
  runClang as run,
  type Toolchain,
} from "../../../dylib/ptx/toolchain.ts";
import { fromFileUrl } from "./paths.ts";

export type { Run, Toolchain };

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

/** Include folders: the shim that the product has for PTX, and what the software GPU adds. */
export const SHIM: readonly string[] = [
  fromFileUrl(new URL("../../../dylib/ptx/shim/", import.meta.url)),
  fromFileUrl(new URL("../shim/", import.meta.url)),
];

/** The compiler with the shim. Throws as `clang` does. */
export async function tools(): Promise<Toolchain> {
  return { clang: await clang(), shim: SHIM };
}

/** Runs clang with `args` and `input` on its standard input. */
export async function runClang(args: string[], input?: string): Promise<Run> {
  return await run(await clang(), args, input);
}

/** Flags that every target shares. */
export function commonFlags(): string[] {
  return flagsOf({ clang: "", shim: SHIM });
}
