import { assertEquals } from "@std/assert";
import { deno } from "../support/process.ts";

Deno.test("without a terminal one line tells of the library's compilation, and nothing of other stages", async () => {
  const bar = new URL("../../src/cli/progress.ts", import.meta.url).href;
  const script = `import { ProgressBar } from ${JSON.stringify(bar)};
    using bar = new ProgressBar();
    const stages = [...Deno.args[0].split(","), "compile"];
    for (const stage of stages) for (const completed of [1, 2]) bar.update({ stage, completed, total: 2 });
    bar.stop();`;
  const told = async (stages: string) => (await deno(["run", "-A", "-", stages], { input: script })).stderr;
  assertEquals(await told("library"), "Compiling the native library: once, for a minute or a few.\n");
  assertEquals(await told("download,self-check,weights"), "");
});
