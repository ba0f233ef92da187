/** The self-check against devices with planted faults: a CPU device that stands for a GPU. */
import { assert, assertEquals, assertRejects, assertStringIncludes } from "@std/assert";
import { Device } from "../../ffi/device.ts";
import { CheckRecord } from "../../src/engine/check_record.ts";
import { selfCheck } from "../../src/engine/self_check.ts";
import type { Plan } from "../../src/schedule/plan.ts";

const VARIANTS = new Set([
  "embed bf16",
  "linear bf16, 1 row",
  "linear bf16, prompt",
  "linear geglu, row",
  "attention d=64 f16, sliding row",
  "gather",
]);

/** A device that counts runs and spoils the first output of ops of one kind. */
class Subject {
  readonly kind = "metal";
  runs = 0;
  constructor(
    readonly cpu: Device,
    readonly library: { path: string; sha256: string },
    readonly spoilt?: string,
    readonly system = "Version 15.0",
  ) {}

  info = () => ({ kind: "metal", name: "A GPU", level: "apple9", system: this.system });
  createBuffer = (bytes: number) => this.cpu.createBuffer(bytes);

  async compile(plan: Plan, buffers: Parameters<Device["compile"]>[1]) {
    const pass = await this.cpu.compile(plan, buffers);
    const output = plan.outputs[0];
    return {
      info: () => ({ kernels: [{ kernel: `${plan.ops[0].kind}_of_the_gpu` }] }),
      run: async (input: Uint8Array<ArrayBuffer>, copied: Uint8Array<ArrayBuffer>) => {
        this.runs++;
        const statistics = await pass.run(input, copied);
        if (plan.ops[0].kind === this.spoilt) {
          new DataView(copied.buffer).setFloat32(0, 123, true);
          buffers[0].write(output.offset, copied.slice(0, 4));
        }
        return statistics;
      },
      [Symbol.dispose]: () => pass[Symbol.dispose](),
    };
  }
}

const asDevice = (subject: Subject) => subject as unknown as Device;

async function withSubjects(
  work: (
    subject: (spoilt?: string, library?: string, system?: string) => Subject,
    cache: string,
  ) => Promise<void>,
) {
  using cpu = await Device.open("cpu", { threads: 1 });
  const cache = await Deno.makeTempDir();
  try {
    await work(
      (spoilt, library = "ab", system) => new Subject(cpu, { path: "", sha256: library }, spoilt, system),
      cache,
    );
  } finally {
    await Deno.remove(cache, { recursive: true });
  }
}

/** The one file of a cache folder's records. */
function recordPath(cache: string): string {
  const names = [...Deno.readDirSync(`${cache}/self-check`)].map((entry) => entry.name);
  assertEquals(names.length, 1, `files ${names.join(", ")}`);
  return `${cache}/self-check/${names[0]}`;
}

Deno.test("a sound device passes, and the second check of the same variants runs nothing", async () => {
  await withSubjects(async (subject, cache) => {
    const device = subject();
    const progress: [number, number][] = [];
    const options = { precision: "fast", cache } as const;
    const found = await selfCheck(asDevice(device), VARIANTS, {
      ...options,
      onProgress: (completed, total) => progress.push([completed, total]),
    });
    assertEquals(found, { failure: undefined, unchecked: [] });
    assert(device.runs >= 5 && device.runs <= VARIANTS.size, `${device.runs} runs`);
    assertEquals(progress.at(0), [0, device.runs]);
    assertEquals(progress.at(-1), [device.runs, device.runs]);

    const again = subject();
    await selfCheck(asDevice(again), VARIANTS, options);
    assertEquals(again.runs, 0);
  });
});

Deno.test("what is not known yet is checked: other variants, the other precision, another library or system", async () => {
  await withSubjects(async (subject, cache) => {
    const check = async (device: Subject, variants = VARIANTS, precision: "exact" | "fast" = "fast") => {
      await selfCheck(asDevice(device), variants, { precision, cache });
      return device.runs;
    };
    const first = await check(subject());
    assertEquals(await check(subject(), new Set([...VARIANTS, "softcap"])), 1);
    assertEquals(await check(subject(), VARIANTS, "exact"), first);
    assertEquals(await check(subject(undefined, "cd")), first);
    assertEquals(await check(subject(undefined, "ab", "Version 15.1")), first);
    assertEquals(await check(subject()), 0);
  });
});

Deno.test("a wrong kernel is named with its op and case, and remembered", async () => {
  await withSubjects(async (subject, cache) => {
    const options = { precision: "fast", cache } as const;
    const { failure } = await selfCheck(asDevice(subject("embed")), VARIANTS, options);
    assertStringIncludes(failure!, 'The op embed is wrong in the case "bf16');
    const healed = subject();
    assertEquals((await selfCheck(asDevice(healed), VARIANTS, options)).failure, failure);
    assertEquals(healed.runs, 0);

    const { failure: linear } = await selfCheck(
      asDevice(subject("linear", "cd")),
      new Set(["linear bf16, 1 row"]),
      options,
    );
    assertStringIncludes(linear!, "The op linear (kernel linear_of_the_gpu) is wrong in the case");
  });
});

Deno.test("a failure does not concern models that do not use the kernel", async () => {
  await withSubjects(async (subject, cache) => {
    const options = { precision: "fast", cache } as const;
    await selfCheck(asDevice(subject("embed")), VARIANTS, options);
    const others = new Set([...VARIANTS].filter((variant) => !variant.startsWith("embed")));
    const found = await selfCheck(asDevice(subject("embed")), others, options);
    assertEquals(found.failure, undefined);
  });
});

Deno.test("a damaged, truncated or foreign record is as good as none", async () => {
  await withSubjects(async (subject, cache) => {
    const options = { precision: "fast", cache } as const;
    const device = subject();
    await selfCheck(asDevice(device), VARIANTS, options);
    const path = recordPath(cache);
    const whole = await Deno.readTextFile(path);
    for (
      const damaged of [
        "",
        "null",
        whole.slice(0, whole.length / 2),
        whole.replace('"passed":[', '"passed":[7,'),
        whole.replace("A GPU", "B GPU"),
        '{"subject":{}}',
      ]
    ) {
      await Deno.writeTextFile(path, damaged);
      const again = subject();
      assertEquals((await selfCheck(asDevice(again), VARIANTS, options)).failure, undefined);
      assertEquals(again.runs, device.runs, damaged);
      assertEquals(await Deno.readTextFile(recordPath(cache)), whole);
    }
  });
});

Deno.test("a later run that passes takes a failure back", async () => {
  await withSubjects(async (subject, cache) => {
    const device = asDevice(subject());
    const record = await CheckRecord.open(device, cache);
    const variants = ["embed bf16"];
    record.add({ precision: "exact", variants, failure: "it is wrong" });
    assertEquals(record.known(new Set(variants), "exact").failure, "it is wrong");
    record.add({ precision: "exact", variants });
    await record.save();
    const known = (await CheckRecord.open(device, cache)).known(new Set(variants), "exact");
    assertEquals(known, { failure: undefined, open: [], unchecked: [] });
  });
});

Deno.test("variants without a case are told each time", async () => {
  await withSubjects(async (subject, cache) => {
    const variants = new Set(["gather", "linear affine7+bf16, 1 row"]);
    for (let i = 0; i < 2; i++) {
      const found = await selfCheck(asDevice(subject()), variants, { precision: "fast", cache });
      assertEquals(found.unchecked, ["linear affine7+bf16, 1 row"]);
    }
  });
});

Deno.test("an aborted self-check rejects with the signal's reason and leaves no record", async () => {
  await withSubjects(async (subject, cache) => {
    const controller = new AbortController();
    const reason = new Error("enough");
    const error = await assertRejects(() =>
      selfCheck(asDevice(subject()), VARIANTS, {
        precision: "fast",
        cache,
        signal: controller.signal,
        onProgress: (completed) => completed === 2 && controller.abort(reason),
      })
    );
    assertEquals(error, reason);
    await assertRejects(() => Deno.stat(`${cache}/self-check`), Deno.errors.NotFound);
  });
});
