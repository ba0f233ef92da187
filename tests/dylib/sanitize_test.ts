import { assert } from "@std/assert";
import { ISAS } from "../../dylib/compiler.ts";
import { scanSources, sha256 } from "../../dylib/sources.ts";
import { cacheFolder } from "../../ffi/cache_folder.ts";
import { encodePlan } from "../../src/schedule/plan.ts";
import { elementarySample, expertSample, fusedSample, sampleBlock, towerSample } from "../ffi/sample.ts";

const dylib = decodeURIComponent(new URL("../../dylib/", import.meta.url).pathname);
const program = decodeURIComponent(new URL("./sanitize.cpp", import.meta.url).pathname);
const SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1", "-g1"];

/**
 * Compiles the CPU device and the program with sanitizers and returns the executable. It takes minutes, so it is kept in the
 * cache folder under the hash of its sources.
 */
async function build(): Promise<string> {
  const { files, units } = await scanSources(new URL(`file://${dylib}`));
  const identity = JSON.stringify([files, await Deno.readTextFile(program), SANITIZE]);
  const key = (await sha256(new TextEncoder().encode(identity))).slice(0, 32);
  const cache = `${await cacheFolder()}/tests`;
  const executable = `${cache}/sanitize-${key}`;
  if (await Deno.stat(executable).then(() => true, () => false)) return executable;
  await Deno.mkdir(cache, { recursive: true });
  const folder = await Deno.makeTempDir({ dir: cache });
  const jobs: { file: string; flags: string[] }[] = [{ file: program, flags: [] }];
  for (const { file, isa, device } of units) {
    if (file === "abi.cpp" || device !== undefined && device !== "cpu") continue;
    for (const name of isa ?? [undefined]) {
      const set = name === undefined ? undefined : ISAS[name];
      if (set?.arch !== undefined && set.arch !== Deno.build.arch) continue;
      jobs.push({ file: dylib + file, flags: name === undefined ? [] : [`-DMB_ISA=${name}`, ...set!.flags] });
    }
  }
  const objects: string[] = [];
  const queue = jobs.map((job, i) => ({ ...job, object: `${folder}/${i}.o` }));
  const worker = async () => {
    for (let job = queue.shift(); job; job = queue.shift()) {
      const { file, flags, object } = job;
      await compile([
        "-std=c++17",
        ...SANITIZE,
        "-ffp-contract=off",
        `-I${dylib}`,
        ...flags,
        "-c",
        file,
        "-o",
        object,
      ]);
      objects.push(object);
    }
  };
  await Promise.all(Array.from({ length: Math.min(4, navigator.hardwareConcurrency) }, worker));
  await compile([...SANITIZE, "-pthread", ...objects.sort(), "-ldl", "-o", `${folder}/sanitize`]);
  for await (const entry of Deno.readDir(cache)) { // those of older sources
    if (entry.name.startsWith("sanitize-")) await Deno.remove(`${cache}/${entry.name}`);
  }
  await Deno.rename(`${folder}/sanitize`, executable);
  await Deno.remove(folder, { recursive: true });
  return executable;
}

async function compile(args: string[]): Promise<void> {
  const { success, stderr } = await new Deno.Command("c++", { args, stderr: "piped" }).output();
  assert(success, `${args}: ${new TextDecoder().decode(stderr).slice(0, 4000)}`);
}

/** Whether the compiler comes with its sanitizer libraries. */
async function hasSanitizers(): Promise<boolean> {
  const child = new Deno.Command("c++", {
    args: ["-fsanitize=address,undefined", "-x", "c++", "-", "-o", "/dev/null"],
    stdin: "piped",
    stderr: "null",
  }).spawn();
  const writer = child.stdin.getWriter();
  await writer.write(new TextEncoder().encode("int main() {}"));
  await writer.close();
  return (await child.status).success;
}

Deno.test({
  name: "hostile plans and input blocks never make the CPU device touch a byte outside its buffers",
  // Instrumented kernels take minutes to compile, so this runs only where it is asked for.
  ignore: !Deno.env.get("MARKBASE_SANITIZE") || !await hasSanitizers(),
  async fn() {
    const folder = await Deno.makeTempDir();
    const executable = await build();
    for (const { plan, weights } of [fusedSample(), elementarySample(), expertSample(), towerSample()]) {
      const [planFile, weightsFile, inputFile] = ["plan", "weights", "input"].map((name) =>
        `${folder}/${name}`
      );
      await Deno.writeFile(planFile, encodePlan(plan));
      await Deno.writeFile(weightsFile, weights);
      await Deno.writeFile(inputFile, sampleBlock());
      const sizes = plan.buffers.map((buffer) => String(buffer.bytes));
      for (const level of Deno.build.arch === "x86_64" ? ["scalar", ""] : [""]) {
        const { success, stdout, stderr } = await new Deno.Command(executable, {
          args: [planFile, weightsFile, inputFile, ...sizes],
          env: { MARKBASE_CPU: level, ASAN_OPTIONS: "detect_leaks=0" },
          stdout: "piped",
          stderr: "piped",
        }).output();
        assert(success, new TextDecoder().decode(stderr).slice(0, 4000));
        const { refused, ran } = JSON.parse(new TextDecoder().decode(stdout));
        assert(refused > 1000 && ran > 500, `${refused} refused, ${ran} ran`);
      }
    }
    await Deno.remove(folder, { recursive: true });
  },
});
