/** Weights in blocks of GGUF on a GPU device: repacked when a pass is compiled, once for all passes, and counted. */
import { assert, assertEquals } from "@std/assert";
import { allCases } from "../../src/conformance/cases.ts";
import { prepare, runCase } from "../../src/conformance/runner.ts";
import { openMetal, productLibrary } from "./metal.ts";

const ignore = Deno.build.os !== "linux";

Deno.test({
  name:
    "a repacked weight is counted while a pass needs it, once for all passes, at about its size in the file",
  ignore,
  async fn() {
    using device = await openMetal(await productLibrary());
    const c = allCases().find((c) => c.op === "embed" && c.name.startsWith("q6_k"))!;
    const { plan, buffers } = c.build(true);
    using scope = new DisposableStack();
    const bound = buffers.map((bytes) => {
      const buffer = scope.use(device.createBuffer(bytes.length));
      buffer.write(0, bytes);
      return buffer;
    });
    assertEquals(device.memory().repacked, 0);
    const first = await device.compile(plan, bound);
    const { repacked } = device.memory();
    const stored = 67 * 512 / 256 * 210;
    assert(repacked >= stored && repacked <= stored + 3 * 256, `${repacked} bytes of ${stored}`);
    assertEquals(first.info().repackedBytes, repacked);
    const second = await device.compile(plan, bound);
    assertEquals(device.memory().repacked, repacked);
    first.close();
    assertEquals(device.memory().repacked, repacked);
    second.close();
    assertEquals(device.memory().repacked, 0);
  },
});

Deno.test({
  name: "floating-point modes of MLX and affine weights are read where they lie",
  ignore,
  async fn() {
    using device = await openMetal(await productLibrary());
    for (const name of ["mxfp4", "nvfp4", "affine4/64+bf16"]) {
      const c = allCases().find((c) => c.op === "embed" && c.name.startsWith(name))!;
      const row = await runCase(device, prepare(c), true);
      assert(row.pass, `${name}: ${row.reason ?? row.error}`);
      assert(device.memory().peak > 0);
      assertEquals(device.memory().repacked, 0, name);
    }
  },
});
