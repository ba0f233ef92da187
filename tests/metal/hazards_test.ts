import { assert } from "@std/assert";
import { compilerCommand } from "../../dylib/compiler.ts";

/** Compiles and runs a program of tests/metal/probe; returns what it printed. */
async function runProgram(name: string): Promise<string> {
  const source = new URL(`./probe/${name}.cpp`, import.meta.url).pathname;
  const folder = await Deno.makeTempDir();
  try {
    const compiled = await new Deno.Command(await compilerCommand(), {
      args: ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", source, "-o", `${folder}/program`],
    }).output();
    assert(compiled.success, new TextDecoder().decode(compiled.stderr));
    const result = await new Deno.Command(`${folder}/program`).output();
    const text = new TextDecoder().decode(result.stdout);
    assert(result.success, text);
    return text;
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}

Deno.test("barriers stand before the dispatches that conflict since the last one, and before no other", async () => {
  const seen = JSON.parse(await runProgram("hazards"));
  for (const kind of ["raw", "war", "waw"]) assert(seen[kind] > 1000, `only ${seen[kind]} of ${kind}`);
  assert(seen.barriers > 1000 && seen.barriers < seen.dispatches / 2, JSON.stringify(seen));
});
