import { assert, assertEquals } from "@std/assert";
import type { Device, DeviceInfo } from "../../ffi/device.ts";
import { emptyCache, openMetal, probeLibrary, SoftwareMetal } from "./metal.ts";
import { block, COLUMNS, compileProbe, firstColumn, type PROBE, ProbePlan, ROWS, TOKENS } from "./plans.ts";

const ignore = Deno.build.os !== "linux";

/** Compiles and runs copies through `behaviours` on a device whose archives are in `cache`; returns its pipelines. */
async function use(
  cache: string,
  behaviours: (keyof typeof PROBE)[],
): Promise<NonNullable<DeviceInfo["pipelines"]>> {
  using device = await openMetal(await probeLibrary(), { cache });
  await run(device, behaviours);
  return device.info().pipelines!;
}

async function run(device: Device, behaviours: (keyof typeof PROBE)[]): Promise<void> {
  const plan = new ProbePlan();
  let x = plan.tokens();
  for (const behaviour of behaviours) x = plan.probe(behaviour, x);
  using pass = await compileProbe(device, plan.finish(x));
  assertEquals(await firstColumn(pass), TOKENS);
}

async function files(cache: string): Promise<string[]> {
  const names: string[] = [];
  for await (const entry of Deno.readDir(`${cache}/metal`)) names.push(entry.name);
  return names.sort();
}

/** A test with a cache folder of its own, after which no object is left over. */
function archiveTest(name: string, body: (cache: string, metal: SoftwareMetal) => Promise<void>): void {
  Deno.test({
    name,
    ignore,
    fn: async () => {
      const cache = await emptyCache();
      const metal = await SoftwareMetal.open();
      const before = metal.live();
      try {
        await body(cache, metal);
      } finally {
        await Deno.remove(cache, { recursive: true });
      }
      assertEquals(metal.live(), before);
    },
  });
}

archiveTest("compiled kernels are kept in an archive that the next device loads", async (cache, metal) => {
  metal.reset();
  const first = await use(cache, ["copy"]);
  assertEquals([first.wanted, first.ready, first.fromArchive, first.libraries], [2, 2, 0, 1]);
  assertEquals(first.archives, { probe: { state: "new" } });
  assertEquals(metal.count("archive_hits"), 0);
  const [name, ...others] = await files(cache);
  assertEquals(others, [], "no temporary file stays behind");
  assert(/^probe-[0-9a-f]{16}\.archive$/.test(name), name);
  const second = await use(cache, ["copy"]);
  assertEquals([second.wanted, second.ready, second.fromArchive], [2, 2, 2]);
  assertEquals(second.archives, { probe: { state: "loaded" } });
  assertEquals(metal.count("archive_hits"), 2);
});

archiveTest("kernels that an archive lacks are added to it", async (cache) => {
  await use(cache, ["copy"]);
  const second = await use(cache, ["copy", "stage"]);
  assertEquals([second.ready, second.fromArchive], [3, 2]);
  const third = await use(cache, ["copy", "stage"]);
  assertEquals([third.ready, third.fromArchive], [3, 3]);
});

archiveTest("an archive that is damaged is made anew, with the reason told", async (cache) => {
  await use(cache, ["copy"]);
  const [name] = await files(cache);
  await Deno.writeTextFile(`${cache}/metal/${name}`, "not an archive");
  const rebuilt = await use(cache, ["copy"]);
  assertEquals([rebuilt.ready, rebuilt.fromArchive, rebuilt.archives.probe.state], [2, 0, "rebuilt"]);
  assert(rebuilt.archives.probe.failure!.includes("MTLBinaryArchiveDomain"));
  const next = await use(cache, ["copy"]);
  assertEquals([next.fromArchive, next.archives.probe.state], [2, "loaded"]);
});

archiveTest("another system version has archives of its own", async (cache, metal) => {
  await use(cache, ["copy"]);
  metal.set("os", 14);
  try {
    const other = await use(cache, ["copy"]);
    assertEquals([other.fromArchive, other.archives.probe.state], [0, "new"]);
    assertEquals((await files(cache)).length, 2);
  } finally {
    metal.set("os", 15);
  }
  assertEquals((await use(cache, ["copy"])).fromArchive, 2);
});

archiveTest("a cache folder that cannot be written costs the archive and nothing else", async (cache) => {
  await Deno.mkdir(`${cache}/metal`);
  using device = await openMetal(await probeLibrary(), { cache });
  await Deno.remove(`${cache}/metal`);
  await Deno.writeTextFile(`${cache}/metal`, "a file where the folder was");
  await run(device, ["copy"]);
  const { probe } = device.info().pipelines!.archives;
  assertEquals(probe.state, "new");
  assert(probe.failure !== undefined);
});

archiveTest(
  "two processes that fill one archive at once both succeed and leave a whole one",
  async (cache) => {
    const script = `
    import { openMetal, probeLibrary } from ${JSON.stringify(new URL("./metal.ts", import.meta.url).href)};
    import { block, COLUMNS, compileProbe, ProbePlan, ROWS } from ${
      JSON.stringify(new URL("./plans.ts", import.meta.url).href)
    };
    using device = await openMetal(await probeLibrary(), { cache: Deno.args[0] });
    for (const behaviour of Deno.args.slice(1)) {
      const plan = new ProbePlan();
      using pass = await compileProbe(device, plan.finish(plan.probe(behaviour, plan.tokens())));
      await pass.run(block(), new Float32Array(ROWS * COLUMNS));
    }`;
    const path = await Deno.makeTempFile({ suffix: ".ts" });
    try {
      await Deno.writeTextFile(path, script);
      await probeLibrary(); // not to be built twice
      const config = new URL("../../deno.json", import.meta.url).pathname;
      const spawn = (...behaviours: string[]) =>
        new Deno.Command(Deno.execPath(), {
          args: ["run", "-A", "--no-check", "--config", config, path, cache, ...behaviours],
          stderr: "piped",
        }).output();
      const results = await Promise.all([spawn("copy", "stage"), spawn("copy", "divide", "stage")]);
      for (const result of results) assert(result.success, new TextDecoder().decode(result.stderr));
    } finally {
      await Deno.remove(path);
    }
    assertEquals((await files(cache)).length, 1);
    const after = await use(cache, ["copy"]);
    assertEquals([after.fromArchive, after.archives.probe.state], [2, "loaded"]);
  },
);

Deno.test({
  name: "without a cache folder kernels are compiled in each process",
  ignore,
  fn: async () => {
    const metal = await SoftwareMetal.open();
    using device = await openMetal(await probeLibrary(), { cache: "/proc/absent" });
    metal.reset();
    await run(device, ["copy"]);
    assertEquals(metal.count("archive_hits"), 0);
    const { ready, archives } = device.info().pipelines!;
    assertEquals([ready, archives], [2, { probe: { state: "none" } }]);
  },
});

archiveTest("how far a compilation is can be read while it is under way", async (cache) => {
  using device = await openMetal(await probeLibrary(), { cache });
  const plan = new ProbePlan();
  const x = plan.tokens();
  const compiling = compileProbe(
    device,
    plan.finish(plan.add(plan.probe("stage", x), plan.probe("copy", x))),
  );
  let done = false;
  const seen: [number, number][] = [];
  compiling.finally(() => done = true).catch(() => {});
  while (!done) {
    const { wanted, ready } = device.info().pipelines!;
    seen.push([wanted, ready]);
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
  using pass = await compiling;
  for (const [wanted, ready] of seen) assert(ready <= wanted && wanted <= 4, `${ready} of ${wanted}`);
  assertEquals([device.info().pipelines!.wanted, device.info().pipelines!.ready], [4, 4]);
  await pass.run(block(), new Float32Array(ROWS * COLUMNS));
});
