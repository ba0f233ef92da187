/** The blocks of GGUF against reference values: the oracle, and the CPU device's exact mode through an embedding. */
import { assert, assertEquals } from "@std/assert";
import { parseHeader } from "../../src/checkpoint/safetensors.ts";
import { GGUF_BLOCKS, type GgufType } from "../../src/checkpoint/gguf_types.ts";
import { dequantizeBlocks } from "../../src/conformance/oracle/gguf.ts";

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
