import { assert, assertEquals, assertMatch, assertRejects } from "@std/assert";
import { DeviceError } from "../../src/errors.ts";
import type { Device } from "../../ffi/device.ts";
import { openMetal, probeLibrary, SoftwareMetal } from "./metal.ts";
import { block, COLUMNS, compileProbe, firstColumn, type PROBE, ProbePlan, ROWS, TOKENS } from "./plans.ts";

const supported = Deno.build.os === "linux";

/** A test over software Metal whose objects must all be gone after it. */
function metalTest(name: string, body: (device: Device, metal: SoftwareMetal) => Promise<void>): void {
  Deno.test({
    name,
    ignore: !supported,
    fn: async () => {
      const library = await probeLibrary();
      const metal = await SoftwareMetal.open();
      const before = metal.live();
      {
        using device = await openMetal(library);
        metal.reset();
        await body(device, metal);
      }
      assertEquals(metal.live(), before, "Objective-C objects that are left over");
    },
  });
}

const double = TOKENS.map((token) => token * 2);

async function failure(promise: Promise<unknown>, code: string): Promise<string> {
  const error = await assertRejects(() => promise, DeviceError);
  assertEquals(error.code, code, error.message);
  return error.message;
}

metalTest(
  "a run is one command buffer, one commit and one wait, whatever its number of ops",
  async (device, metal) => {
    const plan = new ProbePlan();
    let x = plan.tokens();
    for (let i = 0; i < 9; i++) x = plan.probe("copy", x);
    using pass = await compileProbe(device, plan.finish(x));
    metal.reset();
    const statistics = await pass.run(block(), new Float32Array(ROWS * COLUMNS));
    const counted = ["command_buffers", "commits", "waits", "encoders", "dispatches", "blits"].map((c) =>
      metal.count(c)
    );
    assertEquals(counted, [1, 1, 1, 1, 10, 0]);
    assertEquals([statistics.commandBuffers, statistics.waits, statistics.dispatches], [1, 1, 10]);
    assert(statistics.deviceNs > 0 && statistics.deviceNs <= statistics.wallNs);
  },
);

metalTest("rows of a run may be fewer than the plan's most, and the tail is left alone", async (device) => {
  const plan = new ProbePlan();
  const x = plan.tokens();
  using pass = await compileProbe(device, plan.finish(plan.add(x, x)));
  assertEquals(await firstColumn(pass, 2), double.slice(0, 2));
  assertEquals(await firstColumn(pass, 4), double);
  assertEquals(await firstColumn(pass, 1), double.slice(0, 1));
});

metalTest("a barrier stands only where bytes that are written meet", async (device, metal) => {
  const plan = new ProbePlan();
  const [a, b, c] = [plan.tokens(), plan.tokens(), plan.tokens()]; // independent
  const [d, e] = [plan.add(a, b), plan.add(b, c)]; // both need the three, neither the other
  using pass = await compileProbe(device, plan.finish(plan.add(d, e)));
  metal.reset();
  assertEquals(await firstColumn(pass), TOKENS.map((token) => token * 4));
  assertEquals(metal.count("barriers"), 2);
  assertEquals(pass.info().barriers, 2);
});

metalTest("a barrier keeps a write behind the reads of the bytes that it reuses", async (device, metal) => {
  const plan = new ProbePlan();
  const zero = plan.activation();
  const a = plan.probe("token", zero);
  const b = plan.add(a, a);
  const c = plan.probe("token", b); // reads none of b's numbers, and lies where `a` did
  using pass = await compileProbe(device, plan.finish(plan.add(plan.add(b, c), zero), { reuse: true }));
  assertEquals(a.offset, c.offset);
  metal.reset();
  for (const order of ["forward", "reverse"]) {
    metal.set("order", order);
    try {
      assertEquals(await firstColumn(pass), TOKENS.map((token) => token * 3), order);
      assertEquals(metal.count("barriers"), order === "forward" ? 4 : 8);
    } finally {
      metal.set("order", "forward");
    }
  }
});

metalTest("independent dispatches may run in any order", async (device, metal) => {
  const plan = new ProbePlan();
  const parts = Array.from({ length: 6 }, () => plan.tokens());
  using pass = await compileProbe(device, plan.finish(parts.reduce((a, b) => plan.add(a, b))));
  for (const order of ["reverse", "shuffle", "forward"]) {
    metal.set("order", order);
    assertEquals(await firstColumn(pass), TOKENS.map((token) => token * 6), order);
  }
});

metalTest("scratch is shared by the passes of a device, as large as the largest need", async (device) => {
  const make = async () => {
    const plan = new ProbePlan();
    return await compileProbe(device, plan.finish(plan.probe("throughScratch", plan.tokens())));
  };
  {
    using first = await make();
    const one = device.memory().scratch;
    assert(one >= 1 << 20);
    using second = await make();
    assertEquals(device.memory().scratch, one);
    assertEquals([await firstColumn(first), await firstColumn(second)], [TOKENS, TOKENS]);
    assertEquals(first.info().scratchBytes, 1 << 20);
  }
  assertEquals(device.memory().scratch, 0);
  assert(device.memory().peak >= 1 << 20);
});

metalTest("dynamic threadgroup memory reaches the kernel", async (device) => {
  const plan = new ProbePlan();
  using pass = await compileProbe(device, plan.finish(plan.probe("stage", plan.tokens())));
  assertEquals(await firstColumn(pass), TOKENS);
});

metalTest("a dispatch of no threadgroups is left out", async (device) => {
  const plan = new ProbePlan();
  using pass = await compileProbe(device, plan.finish(plan.probe("noGroups", plan.tokens())));
  assertEquals(await firstColumn(pass), TOKENS);
  assertEquals(pass.info().dispatches, 2);
});

for (
  const [code, status] of [[2, "timeout"], [8, "out_of_memory"], [1, "device_lost"], [3, "device_lost"], [
    11,
    "device_lost",
  ]] as const
) {
  metalTest(
    `a command buffer that fails with error ${code} is "${status}", and the next run is right`,
    async (device, metal) => {
      const plan = new ProbePlan();
      const x = plan.tokens();
      using pass = await compileProbe(device, plan.finish(plan.add(x, x)));
      metal.injectError(1, code);
      const output = new Float32Array(ROWS * COLUMNS).fill(-7);
      const message = await failure(pass.run(block(), output), status);
      assertMatch(
        message,
        new RegExp(`The GPU .* did not complete the run: .*MTLCommandBufferErrorDomain ${code}`),
      );
      assert(output.every((value) => value === -7), "nothing of a failed run may be copied out");
      assertEquals(await firstColumn(pass), double);
    },
  );
}

metalTest("a kernel that strays is an error of the run, and the next run is right", async (device) => {
  const stray = new ProbePlan();
  using bad = await compileProbe(device, stray.finish(stray.probe("stray", stray.tokens())));
  await failure(bad.run(block(), new Float32Array(ROWS * COLUMNS)), "device_lost");
  const plan = new ProbePlan();
  const x = plan.tokens();
  using pass = await compileProbe(device, plan.finish(plan.add(x, x)));
  assertEquals(await firstColumn(pass), double);
});

const refused: [keyof typeof PROBE, string, RegExp][] = [
  ["manyThreads", "unsupported", /probe_copy needs 1024 threads a threadgroup; .* takes 512 at most/],
  ["stageTooLarge", "unsupported", /probe_stage needs 40960 bytes of threadgroup memory; .* has 32768/],
  ["absentKernel", "internal", /"probe" has no kernel "probe_absent"/],
  ["absentFamily", "internal", /no kernels of the family "absent"/],
  ["beyondBuffer", "internal", /probe_copy binds bytes \[.*1099511627776\) of a buffer of/],
];
for (const [behaviour, code, message] of refused) {
  metalTest(
    `a plan whose dispatch is wrong (${behaviour}) is refused when it is compiled`,
    async (device, metal) => {
      metal.set("max_threads", 512);
      try {
        const plan = new ProbePlan();
        assertMatch(
          await failure(compileProbe(device, plan.finish(plan.probe(behaviour, plan.tokens()))), code),
          message,
        );
        const { livePasses, scratch } = device.memory();
        assertEquals({ livePasses, scratch }, { livePasses: 0, scratch: 0 });
      } finally {
        metal.set("max_threads", 1024);
      }
    },
  );
}

metalTest("the check for NaN and Inf names the op that made them", async (device, metal) => {
  const plan = new ProbePlan();
  const bad = plan.probe("divide", plan.tokens());
  using pass = await compileProbe(device, plan.finish(plan.probe("copy", bad), { checkFinite: true }));
  metal.reset();
  const message = await failure(pass.run(block(), new Float32Array(ROWS * COLUMNS)), "not_finite");
  assertMatch(message, /softcap wrote NaN or Inf into row 0/);
  assertEquals(metal.count("dispatches"), 2);
});

metalTest("a cancelled pass commits nothing until it is resumed", async (device, metal) => {
  const [plan, longer] = [new ProbePlan(), new ProbePlan()];
  using pass = await compileProbe(device, plan.finish(plan.tokens()));
  using other = await compileProbe(device, longer.finish(longer.probe("copy", longer.tokens())));
  metal.reset();
  const held = failure(other.time(block(), 1e6), "cancelled");
  while (metal.count("commits") === 0) await new Promise((resolve) => setTimeout(resolve, 1));
  const run = failure(pass.run(block(), new Float32Array(ROWS * COLUMNS)), "cancelled"); // waits for the device
  pass.cancel();
  other.cancel();
  await Promise.all([run, held]);
  assertEquals(metal.count("dispatches"), 2 * metal.count("commits"), "those of the other alone");
  assertEquals(await firstColumn(pass), TOKENS);
});

metalTest("time() gives the device's time of each repetition", async (device, metal) => {
  const plan = new ProbePlan();
  using pass = await compileProbe(device, plan.finish(plan.tokens()));
  metal.reset();
  const seconds = await pass.time(block(), 3);
  assertEquals(seconds.length, 3);
  assert([...seconds].every((value) => value > 0));
  assertEquals(metal.count("commits"), 3);
});

metalTest("a pass keeps the device and its buffers when these are released first", async (device, metal) => {
  const plan = new ProbePlan();
  const x = plan.tokens();
  const pass = await compileProbe(device, plan.finish(plan.add(x, x)));
  device.close();
  assertEquals(await firstColumn(pass), double);
  assert(metal.live().MTLBuffer > 0);
  pass.close();
});
