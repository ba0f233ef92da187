import { assert, assertEquals, assertMatch, assertRejects } from "@std/assert";
import { DeviceError } from "../../src/errors.ts";
import type { Tensor } from "../../src/schedule/tensor.ts";
import { openMetal, probeLibrary, SoftwareMetal } from "./metal.ts";
import { COLUMNS, compileProbe, firstColumn, ProbePlan, ROWS, TOKENS } from "./plans.ts";

const ignore = Deno.build.os !== "linux";
const VOCABULARY = 1000;
const TABLE_BYTES = VOCABULARY * COLUMNS * 4; // 132,000
const TABLES = 5;
const LEAD = 48; // where the mapped range begins in the file; no page boundary

/** A file of tables: row t of table n holds t + 1000 n. Starts are multiples of 16, as the device asks. */
async function writeTables(path: string): Promise<void> {
  const file = new Uint8Array(LEAD + TABLES * TABLE_BYTES);
  for (let n = 0; n < TABLES; n++) {
    const table = new Float32Array(VOCABULARY * COLUMNS).map((_, i) => Math.floor(i / COLUMNS) + 1000 * n);
    file.set(new Uint8Array(table.buffer), LEAD + n * TABLE_BYTES);
  }
  await Deno.writeFile(path, file);
}

/** The sum of the rows of all tables, in the given order of tables. */
function sumOfTables(order: number[]): ProbePlan & { output: Tensor } {
  const plan = new ProbePlan();
  const buffer = plan.builder.buffer("tables", TABLES * TABLE_BYTES, false);
  const parts = order.map((n) => {
    const shape = [VOCABULARY, COLUMNS];
    const table: Tensor = {
      name: `table${n}`,
      format: { kind: "f32" },
      shape,
      buffer,
      offset: n * TABLE_BYTES,
    };
    const y = plan.activation();
    plan.builder.add({ kind: "embed", table, y, scale: 1 });
    return y;
  });
  return Object.assign(plan, { output: parts.reduce((a, b) => plan.add(a, b)) });
}

const expected = TOKENS.map((token) => TABLES * token + 1000 * (0 + 1 + 2 + 3 + 4));

for (
  const [most, order, most_views] of [
    [8 * 2 ** 30, [0, 1, 2, 3, 4], 1], // the file fits one buffer
    [17 * 16384, [0, 1, 2, 3, 4], 6],
    [17 * 16384, [4, 2, 0, 3, 1], 6],
    [10 * 16384, [3, 1, 4, 0, 2], 6], // hardly larger than a table
  ] as const
) {
  Deno.test({
    name: `a mapped file works through buffers of at most ${most} bytes, tables asked in the order ${order}`,
    ignore,
    fn: async () => {
      const metal = await SoftwareMetal.open();
      const library = await probeLibrary();
      const path = await Deno.makeTempFile();
      const before = metal.live();
      metal.set("max_buffer", most);
      try {
        await writeTables(path);
        using device = await openMetal(library);
        using tables = await device.mapFile(path, LEAD, TABLES * TABLE_BYTES);
        assertEquals(device.memory().mapped, TABLES * TABLE_BYTES);
        const plan = sumOfTables([...order]);
        metal.reset();
        using pass = await compileProbe(device, plan.finish(plan.output), [undefined!, tables]);
        const views = metal.count("no_copy_buffers");
        assert(views >= Math.ceil(TABLES * TABLE_BYTES / most) && views <= most_views, `${views} views`);
        assertEquals(await firstColumn(pass), expected);
        assertEquals(metal.count("no_copy_buffers"), views, "a run makes no further views");
        const row = new Float32Array(1);
        tables.read(3 * TABLE_BYTES + 7 * COLUMNS * 4, row);
        assertEquals(row[0], 3007);
      } finally {
        metal.set("max_buffer", 8 * 2 ** 30);
        await Deno.remove(path);
      }
      assertEquals(metal.live(), before);
    },
  });
}

Deno.test({
  name: "a tensor that no buffer of the GPU can hold is named with the numbers",
  ignore,
  fn: async () => {
    const metal = await SoftwareMetal.open();
    const library = await probeLibrary();
    const path = await Deno.makeTempFile();
    metal.set("max_buffer", 4 * 16384);
    try {
      await writeTables(path);
      using device = await openMetal(library);
      using tables = await device.mapFile(path, LEAD, TABLES * TABLE_BYTES);
      const plan = sumOfTables([0]);
      const compiled = compileProbe(device, plan.finish(plan.output), [undefined!, tables]);
      const error = await assertRejects(() => compiled, DeviceError);
      assertEquals(error.code, "out_of_memory");
      assertMatch(
        error.message,
        /tensor of 132000 bytes is larger than the largest buffer of the GPU .*, which is 65536/,
      );
      const created = (() => {
        try {
          device.createBuffer(65537).close();
        } catch (error) {
          return error as DeviceError;
        }
      })();
      assertMatch(created!.message, /65537 bytes is larger than the largest of the GPU/);
    } finally {
      metal.set("max_buffer", 8 * 2 ** 30);
      await Deno.remove(path);
    }
  },
});

Deno.test({
  name: "files that are absent, too short or no files cannot be mapped",
  ignore,
  fn: async () => {
    using device = await openMetal(await probeLibrary());
    const path = await Deno.makeTempFile();
    try {
      await Deno.writeFile(path, new Uint8Array(100));
      const cases: [string, number, number, RegExp][] = [
        [`${path}.absent`, 0, 1, /Cannot open/],
        [path, 0, 101, /Bytes 0 \+ 101 do not lie in .*, which is a file of 100 bytes/],
        [path, 101, 1, /do not lie in/],
        ["/tmp", 0, 1, /is not a regular file/],
      ];
      for (const [name, offset, bytes, message] of cases) {
        const error = await assertRejects(() => device.mapFile(name, offset, bytes), DeviceError);
        assertEquals(error.code, "io");
        assertMatch(error.message, message);
      }
      using last = await device.mapFile(path, 99, 1);
      const read = new Uint8Array(1).fill(9);
      last.read(0, read);
      assertEquals(read[0], 0);
      const { mapped, liveBuffers } = device.memory();
      assertEquals({ mapped, liveBuffers }, { mapped: 1, liveBuffers: 1 });
    } finally {
      await Deno.remove(path);
    }
  },
});

Deno.test({
  name: "buffers are zero at first, and take writes, fills and copies",
  ignore,
  fn: async () => {
    using device = await openMetal(await probeLibrary());
    using a = device.createBuffer(1000);
    using b = device.createBuffer(1000);
    const read = new Uint8Array(1000).fill(9);
    a.read(0, read);
    assert(read.every((byte) => byte === 0));
    a.write(10, new Uint8Array([1, 2, 3]));
    b.copy(500, a, 9, 5);
    b.fill(0, 3, 7);
    b.read(0, read);
    assertEquals([...read.subarray(0, 4), ...read.subarray(499, 506)], [7, 7, 7, 0, 0, 0, 1, 2, 3, 0, 0]);
    assertEquals(device.memory().buffers, 2000);
  },
});

Deno.test({
  name: "a residency set holds the buffers from macOS 15 on, up to the recommended working set",
  ignore,
  fn: async () => {
    const metal = await SoftwareMetal.open();
    const library = await probeLibrary();
    const before = metal.live();
    for (const system of [13, 14, 15]) {
      metal.set("os", system);
      try {
        using device = await openMetal(library);
        using _buffer = device.createBuffer(4096);
        const plan = new ProbePlan();
        const x = plan.tokens();
        using pass = await compileProbe(device, plan.finish(plan.add(x, x)));
        assertEquals(await firstColumn(pass), TOKENS.map((token) => 2 * token));
        const { residency, recommendedMaxWorkingSetSize } = device.info();
        assertEquals(residency!.set, system === 15);
        if (system < 15) assertMatch(residency!.why!, /macOS 15/);
        else assert(residency!.bytes! >= 4096 + ROWS * COLUMNS * 4 && residency!.leftOutBytes === 0);
        if (system < 15) continue;
        using _large = device.createBuffer(recommendedMaxWorkingSetSize! / 2);
        using _larger = device.createBuffer(recommendedMaxWorkingSetSize! / 2);
        assertEquals(device.info().residency!.leftOutBytes, recommendedMaxWorkingSetSize! / 2);
      } finally {
        metal.set("os", 15);
      }
    }
    assertEquals(metal.live(), before);
  },
});
