/** Whether the fixtures would show a norm, scalar or scale that is left out: none is neutral, and each moves the logits. */
import { assert, assertEquals } from "@std/assert";
import { load } from "../../mod.ts";
import { isMediaTensor, modulePath } from "../../src/checkpoint/names.ts";
import { openCheckpoint } from "../../src/checkpoint/open.ts";
import { toBf16 } from "../../src/conformance/oracle/numbers.ts";
import { withFolder, writeSafetensors } from "../checkpoint/support.ts";
import { tensorsOf } from "../convert/support.ts";
import { EXACT } from "../support/calls.ts";
import { fixtureModel, GOLDEN_MODELS, maxDifference, readGolden } from "../support/models.ts";

/** Of goldens from what is computed, see `checkLogits`; what is left out must show ten times as much. */
const GOLDEN_TOLERANCE = 2e-3;

function numbersOf(dtype: string, bytes: Uint8Array<ArrayBuffer>): number[] | undefined {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const every = (size: number, read: (at: number) => number) =>
    Array.from({ length: bytes.length / size }, (_, i) => read(i * size));
  switch (dtype) {
    case "F32":
      return every(4, (at) => view.getFloat32(at, true));
    case "F16":
      return every(2, (at) => view.getFloat16(at, true));
    case "BF16":
      return every(2, (at) => new Float32Array(Uint32Array.of(view.getUint16(at, true) << 16).buffer)[0]);
  }
}

Deno.test("R53: no norm, scalar or scale of a fixture is neutral", async () => {
  const more = ["31b-mm", "e2b-mm-clipped", "e2b-mm-unclipped", "assistant-e2b", "assistant-31b"];
  let vectors = 0;
  for (const row of [...GOLDEN_MODELS, ...more]) {
    const folder = fixtureModel(row);
    if (folder === null) continue;
    const checkpoint = await openCheckpoint(folder);
    for (const { name, dtype, shape } of checkpoint.tensors.values()) {
      // The frequency divisors of a GGUF file are those of the architecture.
      if (shape.length > 1 || name === "rope_freqs.weight") continue;
      const numbers = numbersOf(dtype, await checkpoint.readTensor(name));
      if (numbers === undefined) continue;
      vectors++;
      const [first] = numbers;
      const isNeutral = numbers.length > 1 ? numbers.every((x) => x === first) : first === 0 || first === 1;
      assert(!isNeutral, `${row}: ${name} is ${first} throughout`);
    }
  }
  assert(vectors > 500, `${vectors}`);
});

for (const row of ["e2b", "26b-a4b"]) {
  const folder = fixtureModel(row);
  Deno.test({
    name: `R53: ${row} without any kind of its norms, scalars and scales has other logits`,
    ignore: folder === null,
    async fn() {
      const { prompts } = await readGolden(folder!);
      const { input_ids: ids } = prompts.at(-1)!;
      const tensors = await tensorsOf(folder!);
      const config = await Deno.readTextFile(`${folder}/config.json`);
      const logitsOf = async (neutral: string) => {
        const entries = [...tensors].map(([name, { dtype, shape, bytes }]) => {
          const isOne = !isMediaTensor(name) && shape.length === 1 && kindOf(name) === neutral;
          const data = isOne ? new Uint8Array(new Uint16Array(shape[0]).fill(toBf16(1)).buffer) : bytes;
          return [name, { dtype, shape, data }] as const;
        });
        const files = {
          "config.json": config,
          "model.safetensors": writeSafetensors(Object.fromEntries(entries)),
        };
        let logits: Float32Array = new Float32Array(0);
        await withFolder(files, async (copy) => {
          await using model = await load(copy, EXACT);
          logits = await model.logits(ids, { last: 8 });
        });
        return logits;
      };
      const right = await logitsOf("none");
      const kinds = new Set(
        [...tensors].flatMap(([name, { shape }]) => shape.length === 1 ? [kindOf(name)] : []),
      );
      assertEquals(kinds.has("layer_scalar"), true);
      assert(kinds.size >= 10, [...kinds].join());
      for (const kind of kinds) {
        const difference = maxDifference(await logitsOf(kind), right);
        assert(difference > 10 * GOLDEN_TOLERANCE, `${kind}: ${difference}`);
      }
    },
  });
}

/** What a tensor is in every layer. */
function kindOf(name: string): string {
  return modulePath(name).replace(/^layers\.\d+\./, "");
}
