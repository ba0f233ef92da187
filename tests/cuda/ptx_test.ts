/** The kernels as PTX. */
import { assert, assertEquals, assertRejects, assertStringIncludes, assertThrows } from "@std/assert";
import { buildPtx } from "../../dylib/ptx/build.ts";
import { findPtxClang } from "../../dylib/ptx/clang.ts";
import { kernelTexts } from "../../dylib/ptx/modules.ts";
import { LibraryError } from "../../src/errors.ts";
import { withEnvironment } from "../support/environment.ts";
import { noPtx } from "./fake.ts";

const lacking = await noPtx();
const ignore = lacking !== undefined;
if (ignore) console.log(`tests of the PTX are skipped: ${lacking}`);

/** Every kernel's text by host name. */
async function kernels(): Promise<Map<string, string>> {
  const folder = await buildPtx("sm_90");
  const texts = new Map<string, string>();
  for await (const { name } of Deno.readDir(folder)) {
    texts.set(name.replace(/\.ptx$/, ""), await Deno.readTextFile(`${folder}/${name}`));
  }
  return texts;
}

Deno.test({
  name:
    "every kernel is one entry with its arguments described, its thread count stated and nothing in local memory",
  ignore,
  async fn() {
    const texts = await kernels();
    const sources = [...Deno.readDirSync(new URL("../../shaders", import.meta.url))];
    assert(texts.size > sources.filter(({ name }) => name.endsWith(".metal")).length);
    for (const [name, text] of texts) {
      const [, entry, threads, list] = /^\/\/ kernel (\w+) threads (\d+) arguments((?: [bpt]\d+:\d+)+)\n/
        .exec(text)!;
      assertEquals([...text.matchAll(/\.entry\s+(\w+)/g)].map(([, found]) => found), [entry], name);
      assert(Number(threads) > 0 && text.includes(`.maxntid ${threads}`), `${name} states no thread count`);
      assert(!/\.local\b|\.func\b/.test(text), `${name} uses local memory or calls a function`);
      const parameters = text.match(/\.param\s+(?:\.align\s+\d+\s+)?\.[bu]\d+\s+\w+/g)!;
      assertEquals(list.trim().split(" ").length, parameters.length, name);
    }
  },
});

Deno.test({
  name:
    "kernels let the next one start before they wait, but for those whose follower reads without waiting what they wait for",
  ignore,
  async fn() {
    let later = 0;
    for (const [name, text] of await kernels()) {
      const lets = [...text.matchAll(/griddepcontrol\.launch_dependents;/g)].map(({ index }) => index);
      const waits = [...text.matchAll(/griddepcontrol\.wait;/g)].map(({ index }) => index);
      assertEquals(lets.length, 1, name);
      assert(waits.length > 0, `${name} does not wait`);
      const afterwards = name.startsWith("expert_gated_");
      assertEquals(waits[0] < lets[0], afterwards, name);
      if (afterwards) later++;
    }
    assert(later > 20, `only ${later} kernels let the next one start when they have waited`);
  },
});

Deno.test({
  name:
    "quantised weights and cached codes are loaded 16 bytes at a time, and fast matrix products use the tensor cores",
  ignore,
  async fn() {
    const texts = await kernels();
    let matvecs = 0, matmuls = 0, attentions = 0;
    for (const [name, text] of texts) {
      if (/^matvec_affine[48]_bf16_(r\d|((plain|held)(_wide)?|long)_n\d)$/.test(name)) {
        assert(/ld\.global(\.nc)?\.v4\.[ub]32/.test(text), `${name} has no 16-byte loads`);
        matvecs++;
      }
      if (/^attention_\w+_q8_d(128|256|512)/.test(name)) {
        assert(/ld\.global(\.nc)?\.v4\.[ub]32/.test(text), `${name} has no 16-byte loads`);
        attentions++;
      }
      if (/^matmul_\w+_f16_m\d+$|^matvec_tile_/.test(name)) {
        assert(text.includes("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"), `${name} has no mma`);
        if (/_m(64|128)$/.test(name)) {
          assert(text.includes("ldmatrix"), `${name} loads fragments word by word`);
        }
        matmuls++;
      }
    }
    assertEquals(matvecs, 2 * (3 + 5 * 3));
    assert(matmuls >= 8, `${matmuls} matmuls`);
    assertEquals(attentions, 3 * (5 + 5 + 2));
  },
});

Deno.test({
  name:
    "every kernel waits once for those before it; products of decode rows ask for weights first, and attention for keys",
  ignore,
  async fn() {
    let first = 0;
    for (const [name, text] of await kernels()) {
      const waits = [...text.matchAll(/griddepcontrol\.wait/g)].map(({ index }) => index);
      if (/^(attention_spread|expert_summed)_/.test(name)) {
        // Either before it asks for anything or when it has asked for keys or weights, as a flag has it.
        assertEquals(waits.length, 2, name);
        const loads = [...text.matchAll(/ld\.global/g)].map(({ index }) => index);
        assert(waits[0] < loads[0] && loads[0] < waits[1], `${name} asks for nothing before it waits`);
        const isCluster = text.includes(".reqnctapercluster 8, 1, 1");
        assertEquals(isCluster, name.startsWith("attention") && !name.includes("split"), name);
        first++;
        continue;
      }
      assertEquals(waits.length, 1, name);
      if (!/^matvec_\w+_(plain|held|long)(_wide)?_n\d$/.test(name)) continue;
      assert(text.indexOf("ld.global") < waits[0], `${name} asks for no weights before it waits`);
      first++;
    }
    assert(first > 0);
  },
});

Deno.test("without a clang that makes PTX the error names it and what to install", async () => {
  await withEnvironment({ MARKBASE_CLANG: "clang-of-nowhere" }, async () => {
    const error = await assertRejects(() => findPtxClang(), LibraryError);
    assertEquals(error.code, "no_ptx_compiler");
    assertStringIncludes(error.message, "clang-of-nowhere is not installed");
  });
});

Deno.test("a folder of PTX named by MARKBASE_PTX is used as it is, and its absence is told", async () => {
  const folder = await Deno.makeTempDir();
  try {
    await Deno.mkdir(`${folder}/sm_80`);
    await withEnvironment({ MARKBASE_PTX: folder }, async () => {
      assertEquals(await buildPtx("sm_80"), `${folder}/sm_80`);
      assertEquals((await assertRejects(() => buildPtx("sm_90"), LibraryError)).code, "ptx_not_found");
      assertEquals((await assertRejects(() => buildPtx("sm_70"), LibraryError)).code, "build_failed");
    });
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
});

const HEAD = ".version 8.3\n.target sm_90\n.address_size 64\n";
const kernel = (entry: string) => ({
  host: entry.slice(2),
  entry,
  maxThreads: 64,
  arguments: [
    { name: "x", kind: "buffer", index: 3 } as const,
    { name: "p", kind: "bytes", index: 7 } as const,
    { name: "m", kind: "threadgroup", index: 0 } as const,
  ],
});
const entry = (name: string, body: string) =>
  `.visible .entry ${name}(\n\t.param .u64 ${name}_param_0,\n\t.param .align 4 .b8 ${name}_param_1[208],\n` +
  `\t.param .u32 ${name}_param_2\n)\n{\n\t${body}\n}\n`;

Deno.test("a family is taken apart into kernels with the variables that each of them uses", () => {
  const text = HEAD + ".shared .align 16 .b8 one[64];\n.const .align 4 .b8 table[8] = {1, 2,\n 3};\n" +
    entry("k_a", "ld.shared.u32 %r1, [one];") + entry("k_b", "ld.const.u32 %r1, [table];");
  const texts = kernelTexts({ text, kernels: [kernel("k_a"), kernel("k_b")] });
  assertEquals([...texts.keys()], ["a", "b"]);
  const [a, b] = [...texts.values()];
  assert(a.startsWith("// kernel k_a threads 64 arguments b3:8 p7:208 t0:4\n.version 8.3\n"));
  assert(a.includes("\n)\n.maxntid 64, 1, 1\n{\n"));
  assert(a.includes("one[64]") && !a.includes("table") && !a.includes("k_b"));
  assert(b.includes("3};") && !b.includes("one[64]") && !b.includes("k_a"));
});

Deno.test("PTX with a function that was not inlined or without an entry is refused", () => {
  const text = HEAD + ".func other()\n{\n}\n" + entry("k_a", "ret;");
  assertThrows(() => kernelTexts({ text, kernels: [kernel("k_a")] }), Error, "not inlined");
  assertThrows(
    () => kernelTexts({ text: HEAD + entry("k_a", "ret;"), kernels: [kernel("k_b")] }),
    Error,
    "k_b",
  );
});
