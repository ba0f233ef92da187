/**
 * The generator's command line. The software GPU calls `compile`; `check` and `ptx` are for people.
 *
 *     deno run -A generator/main.ts compile SOURCE OUT.so MODE MATH VERSION MARCH RUNTIME
 *     deno run -A generator/main.ts check FILE…
 *     deno run -A generator/main.ts ptx FILE OUT.ptx [INDEX=VALUE…]
 *
 * Errors go to standard output, so that the software GPU can hand them to its caller; the exit status is 1.
 */
import { checkMsl, compileCpu, compilePtx, type CpuOptions, MslError } from "./compile.ts";

function folderOf(path: string): string {
  return path.includes("/") ? path.slice(0, path.lastIndexOf("/")) : ".";
}

async function main(args: string[]): Promise<void> {
  const [command, ...rest] = args;
  if (command === "compile") {
    const [source, out, mode, math, version, march, runtime] = rest;
    const name = source.slice(source.lastIndexOf("/") + 1);
    const options = { mode, math, march, runtime, version: Number(version), name } as CpuOptions;
    await compileCpu(await Deno.readTextFile(source), out, options);
  } else if (command === "check") {
    for (const file of rest) {
      await checkMsl(await Deno.readTextFile(file), { name: file, includes: [folderOf(file)] });
    }
  } else if (command === "ptx") {
    const [file, out, ...constants] = rest;
    const module = await compilePtx(await Deno.readTextFile(file), {
      name: file,
      includes: [folderOf(file)],
      constants: Object.fromEntries(constants.map((c) => c.split("="))),
    });
    await Deno.writeTextFile(out, module.text);
    console.log(JSON.stringify(module.kernels));
  } else throw new Error(`unknown command '${command}': compile, check or ptx`);
}

if (import.meta.main) {
  try {
    await main(Deno.args);
  } catch (e) {
    console.log(e instanceof MslError || e instanceof Error ? e.message : String(e));
    Deno.exit(1);
  }
}
