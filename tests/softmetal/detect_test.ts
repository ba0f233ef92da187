import { assert, assertEquals, assertThrows } from "@std/assert";
import { fromFileUrl } from "./generator/paths.ts";
import { Gpu, HostError, withOptions, words } from "./host.ts";

const BUGS = Deno.readTextFileSync(fromFileUrl(new URL("kernels/bugs.metal", import.meta.url)));

/** One run of a kernel that writes floats to its last buffer. */
interface Case {
  /** Bytes of the buffers; 256 each when absent. */
  buffers?: number[];
  threads?: number;
  groups?: number;
  threadgroupBytes?: number;
  /** What detect mode must report, or null where it must not. */
  detect: RegExp | null;
  /** What fast mode must report; absent where it may pass. */
  fast?: RegExp;
}

const CASES: Record<string, Case> = {
  read_past_end: {
    buffers: [256, 256],
    detect:
      /out-of-bounds read of 4 bytes, 4 bytes past the end of buffer\(0\) 'x' \(256 bytes bound\).*thread \(60,0,0\).* at .*\.metal:5/,
    fast: /out-of-bounds: past the end of a buffer/,
  },
  write_past_end: { detect: /out-of-bounds write of 4 bytes/, fast: /out-of-bounds: past the end/ },
  write_just_past_end: {
    buffers: [12],
    detect: /out-of-bounds write/,
    fast: /bytes just past the end of a buffer of 12 bytes/,
  },
  missing_barrier: { detect: /read of uninitialised threadgroup memory s|data race .*mem_threadgroup/ },
  wrong_barrier_flags: { detect: /data race \(no threadgroup_barrier with mem_threadgroup between\?\) on s/ },
  missing_device_barrier: {
    buffers: [512],
    detect: /data race \(no threadgroup_barrier with mem_device between\?\) on o/,
  },
  simdgroup_barrier_too_weak: { detect: /read of uninitialised threadgroup memory s|data race/ },
  write_after_read: { detect: /data race .* on s .*thread \d+ reads, thread \d+ writes/ },
  divergent_barrier: {
    detect: /deadlock.*32 threads wait in threadgroup_barrier.*32 have returned/,
    fast: /deadlock/,
  },
  barrier_after_return: { detect: /deadlock/, fast: /deadlock.*40 threads wait in threadgroup_barrier/ },
  two_barriers: {
    detect: /different threadgroup_barrier calls/,
    fast: /different threadgroup_barrier calls/,
  },
  divergent_simd: { detect: /divergent control flow/, fast: /divergent control flow/ },
  one_sided_simd: { detect: /divergent control flow/, fast: /divergent control flow/ },
  simd_after_return: { detect: /divergent control flow/, fast: /divergent control flow/ },
  uninitialised_threadgroup: { detect: /read of uninitialised threadgroup memory s \+4/ },
  threadgroup_past_end: { detect: /past the end of threadgroup 's' \(128 bytes\)/ },
  threadgroup_40k: {
    detect: /threadgroup memory of 40960 bytes exceeds 32768/,
    fast: /threadgroup memory of 40960 bytes exceeds 32768/,
  },
  race_between_groups: { groups: 3, detect: /race between threadgroups 0 and 1/ },
  race_of_bytes: { detect: /data race/ },
  neighbouring_bytes: { detect: null },
  atomic_and_plain: { detect: /data race/ },
  misaligned_vector: { detect: /undefined behaviour \(misaligned/ },
  local_array_past_end: { detect: /undefined behaviour/ },
  shift_by_32: { detect: /undefined behaviour/ },
  divide_by_zero: { detect: /undefined behaviour/, fast: /undefined behaviour/ },
  matrix_past_end: { threads: 32, detect: /out-of-bounds read/, fast: /out-of-bounds: past the end/ },
  matrix_missing_barrier: { threads: 32, detect: /data race|uninitialised threadgroup memory/ },
  matrix_arguments_differ: {
    threads: 32,
    buffers: [1024],
    detect: /simdgroup_load: lanes pass different arguments/,
  },
  matrix_divergent: { threads: 32, detect: /divergent control flow/ },
};

function run(name: string, c: Case): string {
  using gpu = new Gpu(BUGS);
  const buffers = (c.buffers ?? [256]).map((n) => gpu.buffer(n));
  try {
    gpu.run(gpu.pipeline(name), buffers, [c.groups ?? 1, 1, 1], [c.threads ?? 64, 1, 1], c.threadgroupBytes);
    return "";
  } catch (e) {
    if (e instanceof HostError) return e.message;
    throw e;
  }
}

Deno.test("detect mode reports every planted bug of a kernel, with its place", async (t) => {
  for (const [name, c] of Object.entries(CASES)) {
    await t.step(name, () => {
      const report = withOptions({ detect: 1 }, () => run(name, c));
      if (c.detect === null) assertEquals(report, "");
      else assert(c.detect.test(report), `reported: "${report}"`);
    });
  }
});

Deno.test("fast mode reports the bugs that fault or deadlock", async (t) => {
  for (const [name, c] of Object.entries(CASES)) {
    if (!c.fast) continue;
    await t.step(name, () => {
      const report = run(name, c);
      assert(c.fast!.test(report), `reported: "${report}"`);
    });
  }
});

Deno.test("the order of lanes shows a missing barrier in fast mode", () => {
  const results = ["forward", "reverse"].map((order) =>
    withOptions({ order }, () => {
      using gpu = new Gpu(BUGS);
      const o = gpu.buffer(256);
      gpu.run(gpu.pipeline("missing_barrier"), [o], [1, 1, 1], [64, 1, 1]);
      return new Float32Array(gpu.read(o)).join();
    })
  );
  assert(results[0] !== results[1]);
});

Deno.test("an uninitialised local variable reads as a pattern in detect mode", () => {
  withOptions({ detect: 1 }, () => {
    using gpu = new Gpu(BUGS);
    const o = gpu.buffer(256);
    gpu.run(gpu.pipeline("uninitialised_local"), [o], [1, 1, 1], [64, 1, 1]);
    const y = new Float32Array(gpu.read(o));
    assertEquals(y[0], 1);
    assert(y[63] !== 1 && (Number.isNaN(y[63]) || Math.abs(y[63]) < 1e-10), String(y[63]));
  });
});

function chain(barrier: "none" | "all" | "right" | "wrong", concurrent: boolean): string {
  return withOptions({ detect: 1 }, () => {
    using gpu = new Gpu(BUGS);
    const [a, b, c] = [gpu.buffer(256), gpu.buffer(256), gpu.buffer(256)], p = gpu.pipeline("add");
    gpu.begin(concurrent);
    gpu.dispatch(p, [a, a, b, words(64)], [1, 1, 1], [64, 1, 1]);
    if (barrier !== "none") gpu.barrier(barrier === "all" ? null : barrier === "right" ? b : a);
    gpu.dispatch(p, [b, a, c, words(64)], [1, 1, 1], [64, 1, 1]);
    try {
      gpu.finish();
      return "";
    } catch (e) {
      return (e as Error).message;
    }
  });
}

Deno.test("dependent dispatches of a concurrent encoder need a barrier for the right buffer", () => {
  const missing = /missing memoryBarrier in a concurrent encoder: 'add' reads a \+0 that 'add' writes/;
  assert(missing.test(chain("none", true)));
  assert(missing.test(chain("wrong", true)));
  assertEquals(chain("right", true), "");
  assertEquals(chain("all", true), "");
  assertEquals(chain("none", false), "");
});

Deno.test("overlapping views of the same pages are seen as one memory", () => {
  withOptions({ detect: 1 }, () => {
    using gpu = new Gpu(BUGS);
    const pages = gpu.pages(32768), p = gpu.pipeline("add");
    const whole = gpu.noCopy(pages, 32768), again = gpu.noCopy(pages, 16384);
    gpu.begin(true);
    gpu.dispatch(p, [gpu.buffer(256), gpu.buffer(256), whole, words(64)], [1, 1, 1], [64, 1, 1]);
    gpu.dispatch(p, [again, again, gpu.buffer(256), words(64)], [1, 1, 1], [64, 1, 1]);
    const e = assertThrows(() => gpu.finish(), HostError);
    assert(e.message.includes("missing memoryBarrier"), e.message);
  });
});

Deno.test("a fault leaves the device usable", () => {
  using gpu = new Gpu(BUGS);
  const p = gpu.pipeline("null_write"), o = gpu.buffer(256);
  const e = assertThrows(() => gpu.run(p, [o, words(16, 0)], [1, 1, 1], [64, 1, 1]), HostError);
  assert(/access through a null pointer .*thread \(5,0,0\)/.test(e.message), e.message);
  const a = gpu.buffer(new Float32Array(64).fill(2)), c = gpu.buffer(256);
  gpu.run(gpu.pipeline("add"), [a, a, c, words(64)], [1, 1, 1], [64, 1, 1]);
  assertEquals(new Float32Array(gpu.read(c))[63], 4);
});
