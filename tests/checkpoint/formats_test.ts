/** What checkpoints of all formats have in common: the same checks. */
import { assertEquals, assertStringIncludes } from "@std/assert";
import { ggufNaming } from "../../src/checkpoint/gguf_names.ts";
import { folderNaming } from "../../src/checkpoint/names.ts";
import { type Checkpoint, openCheckpoint } from "../../src/checkpoint/open.ts";
import type { MarkbaseError } from "../../src/errors.ts";
import { uniform } from "../../src/convert/recipe.ts";
import { converted, tensorsOf } from "../convert/support.ts";
import { contentOf } from "./gguf_content.ts";
import { writeGguf } from "./gguf_writer.ts";
import { folderOf, onRow, withFolder, writeSafetensors } from "./support.ts";

/** A tensor of a file, and the module path that it has in every format. */
interface Stored {
  name: string;
  path: string;
  shape: number[];
  data: Uint8Array;
  /** of one number of a vector */ bytes: 2 | 4;
}

/** Opens a copy whose tensors were changed. */
type Open = (
  change: (tensors: Stored[]) => void,
  use: (checkpoint: Checkpoint) => Promise<void>,
) => Promise<void>;

function folder(from: string): Open {
  return async (change, use) => {
    const entries = [...await tensorsOf(from)];
    const { pathOf } = folderNaming(entries.map(([name]) => name));
    const tensors = entries.map(([name, { shape, bytes, dtype }]) => ({
      ...{ name, path: pathOf(name), shape, data: bytes.slice(), dtype },
      bytes: dtype === "F32" ? 4 as const : 2 as const,
    }));
    change(tensors);
    const config = await Deno.readTextFile(`${from}/config.json`);
    const weights = writeSafetensors(Object.fromEntries(tensors.map((tensor) => [tensor.name, tensor])));
    const files = { "config.json": config, "model.safetensors": weights };
    await withFolder(files, async (copy) => await use(await openCheckpoint(copy)));
  };
}

function gguf(row: string): Open {
  return async (change, use) => {
    const content = contentOf(row);
    const { pathOf } = ggufNaming(content.tensors.map(({ name }) => name));
    const tensors = content.tensors.map((tensor) => ({
      ...tensor,
      path: pathOf(tensor.name),
      bytes: 4 as const,
    }));
    change(tensors);
    const written = writeGguf({ ...content, tensors });
    await withFolder({ "m.gguf": written }, async (copy) => await use(await openCheckpoint(copy)));
  };
}

function find(tensors: Stored[], path: string): Stored {
  return tensors.find((tensor) => tensor.path === path)!;
}

/** What is done to a file, to which tensor, and the error's code; none: a warning that names it. */
const DAMAGES: [
  what: string,
  path: string,
  damage: (tensors: Stored[], at: Stored) => void,
  code?: string,
][] = [
  ...[
    "layers.1.layer_scalar",
    "layers.1.mlp.up_proj.weight",
    "layers.0.self_attn.q_norm.weight",
    "norm.weight",
  ].map(
    (path): (typeof DAMAGES)[number] => [
      `lacks ${path}`,
      path,
      (tensors, at) => void tensors.splice(tensors.indexOf(at), 1),
      "missing_tensor",
    ],
  ),
  ["has a NaN in a norm", "layers.0.input_layernorm.weight", (_, { data, bytes }) => {
    data.fill(0xff, 3 * bytes, 4 * bytes);
  }, "not_finite"],
  ["has an infinite layer scalar", "layers.0.layer_scalar", (_, { data, bytes }) => {
    data.set(bytes === 4 ? [0, 0, 0x80, 0x7f] : [0x80, 0x7f]);
  }, "not_finite"],
  ["has a norm of half the length", "layers.1.post_attention_layernorm.weight", (_, at) => {
    at.data = at.data.slice(0, at.data.length / 2);
    at.shape = [at.shape[0] / 2];
  }, "tensor_shape"],
  ["has a tensor of no role", "layers.1.layer_scalar", (tensors, at) => {
    const path = "layers.1.self_attn.sink";
    tensors.push({ ...at, path, name: at.name.replace(/[^.]*(\.weight)?$/, "sink") });
  }],
];

async function checkDamages(open: Open): Promise<void> {
  await open(() => {}, async (sound) => {
    await sound.checkFinite();
    assertEquals(sound.warnings, []);
  });
  for (const [what, path, damage, code] of DAMAGES) {
    let name = "";
    const change = (tensors: Stored[]) => {
      const at = find(tensors, path);
      damage(tensors, at);
      name = code === undefined ? tensors.at(-1)!.name : at.name;
    };
    await open(change, async (checkpoint) => {
      let error: MarkbaseError | undefined;
      try {
        await checkpoint.checkFinite();
      } catch (caught) {
        error = caught as MarkbaseError;
      }
      assertEquals(error?.code, code, `${what}: ${error?.message}`);
      if (error !== undefined) assertStringIncludes(error.message, name, what);
      else {assertEquals(checkpoint.warnings.map(({ code, names }) => [code, names]), [[
          "unexpected_tensors",
          [name],
        ]], what);}
    });
  }
}

Deno.test({
  ...onRow("e2b", "R46: the same faults are found in bf16, in MLX's 4 and 8 bits, and in GGUF files"),
  async fn() {
    await checkDamages(folder(folderOf("e2b")));
    await checkDamages(folder(folderOf("e2b-mlx-4bit")));
    const base = { bits: 8, groupSize: 32 } as const;
    await using eight = await converted(folderOf("e2b"), { base, recipe: uniform(base) });
    await checkDamages(folder(eight.folder));
    await checkDamages(gguf("tiny-gguf-iq4_nl"));
    await checkDamages(gguf("kq-gguf-q4_k_m"));
  },
});
