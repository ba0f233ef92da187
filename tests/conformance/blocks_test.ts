/** The blocks of GGUF against reference values: the oracle, and the CPU device's exact mode through an embedding. */
import { assert, assertEquals } from "@std/assert";
import { parseHeader } from "../../src/checkpoint/safetensors.ts";
import { GGUF_BLOCKS, type GgufType } from "../../src/checkpoint/gguf_types.ts";
import { Device } from "../../ffi/device.ts";
import { dequantizeBlocks } from "../../src/conformance/oracle/gguf.ts";

import { ProblemBuilder } from "../../src/conformance/problem.ts";
import { Random } from "../../src/conformance/random.ts";
import { execute } from "../../src/conformance/runner.ts";
import { lackingLevels, LEVELS } from "./levels.ts";

const lacking = await lackingLevels();
const FILE = new URL("../fixtures/formats/gguf_blocks.safetensors", import.meta.url);

/** Raw bytes of a type's blocks and the float32 values that they stand for. */
function golden(type: GgufType): { raw: Uint8Array<ArrayBuffer>; values: Float32Array } {
  const bytes = Deno.readFileSync(FILE);
  const length = Number(new DataView(bytes.buffer).getBigUint64(0, true));
  const { tensors } = parseHeader(bytes.subarray(8, 8 + length), bytes.length, "blocks", 0);
  const part = (name: string) => {
    const { data } = tensors.find((tensor) => tensor.name === `${type.toUpperCase()}.${name}`)!;
    return bytes.slice(data.offset, data.offset + data.length);
  };
  return { raw: part("raw"), values: new Float32Array(part("f32").buffer) };
}

for (const type of Object.keys(GGUF_BLOCKS) as GgufType[]) {
  Deno.test(`blocks of ${type} are dequantised to the reference's float32 values bit for bit`, () => {
    const { raw, values } = golden(type);
    assertEquals(raw.length / GGUF_BLOCKS[type].bytes, 5);
    assert(values.some((value) => value !== 0));
    assertEquals(Array.from(dequantizeBlocks(type, raw), Math.fround), Array.from(values));
  });
}

for (const level of LEVELS) {
  Deno.test({
    name:
      `rows of blocks are looked up bit for bit on cpu ${level}, so that exact products are those of the reference`,
    ignore: lacking.has(level),
    async fn() {
      using device = await Device.open("cpu", { level, threads: 1 });
      for (const type of Object.keys(GGUF_BLOCKS) as GgufType[]) {
        const { raw, values } = golden(type);
        const builder = new ProblemBuilder(new Random(1), [{ position: 0 }], { vocabulary: 1 });
        const table = builder.matrix("table", 1, values.length, { kind: "gguf", type });
        const y = builder.output("y", ["rows", values.length]);
        const problem = builder.finish({ kind: "embed", table, y, scale: 1 }, true);
        problem.buffers[table.buffer].set(raw, table.offset);
        const [arena] = await execute(device, problem, true);
        const found = new Float32Array(arena.slice(y.offset, y.offset + 4 * values.length).buffer);
        assertEquals(Array.from(found), Array.from(values), type);
      }
    },
  });
}
