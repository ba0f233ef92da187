/** `load` on a Metal GPU with a wrong kernel: software Metal with a fault planted in the shader source. */
import { assert, assertEquals, assertStringIncludes } from "@std/assert";
import { cacheFolder } from "../../ffi/cache_folder.ts";
import { scanSources } from "../../dylib/sources.ts";
import { buildSoftMetalLibrary } from "../softmetal/task.ts";

const root = new URL("../../", import.meta.url);

/** Where the fault is planted: `gather` takes the row before the right one. */
const RIGHT = "input_out_row(input)[at.y]) * p.width + at.x]";
const WRONG = "max(input_out_row(input)[at.y], 1u) - 1u) * p.width + at.x]";

/** The product's library with the faulty kernel; returns its path. */
async function faultyLibrary(): Promise<string> {
  const dylib = new URL("dylib/", root);
  const copy = await Deno.makeTempDir({ prefix: "markbase-fault-" });
  try {
    for (const file of Object.keys((await scanSources(dylib)).files)) {
      const to = new URL(file, `file://${copy}/dylib/`);
      await Deno.mkdir(new URL("./", to), { recursive: true });
      let text = await Deno.readTextFile(new URL(file, dylib));
      if (file === "../shaders/pointwise.metal") {
        assert(text.includes(RIGHT), "the place of the fault has changed");
        text = text.replace(RIGHT, WRONG);
      }
      await Deno.writeTextFile(to, text);
    }
    return (await buildSoftMetalLibrary({ sources: new URL(`file://${copy}/dylib/`) })).path;
  } finally {
    await Deno.remove(copy, { recursive: true });
  }
}

/** What a process of its own makes of the shipped model. */
interface Outcome {
  device?: string;
  text?: string;
  warnings?: { code: string; message: string }[];
  error?: { name: string; code: string; message: string };
  checked: number;
}

const script = `
import { load } from "${new URL("mod.ts", root)}";
let checked = 0;
const onProgress = ({ stage }) => stage === "self-check" && checked++;
try {
  await using model = await load("tiny", { device: Deno.args[0], onProgress });
  const reply = await model.chat([{ role: "user", content: "What is 27 + 45?" }], { temperature: 0 });
  console.log(JSON.stringify({
    device: reply.receipt.device, text: reply.text, warnings: reply.warnings, checked,
  }));
} catch ({ name, code, message }) {
  console.log(JSON.stringify({ error: { name, code, message }, checked }));
}`;

async function outcome(library: string, cache: string, device: string): Promise<Outcome> {
  await Deno.writeTextFile(`${cache}/script.ts`, script);
  const { stdout } = await new Deno.Command(Deno.execPath(), {
    args: ["run", "-A", "--no-lock", `${cache}/script.ts`, device],
    env: {
      MARKBASE_DYLIB: library,
      MARKBASE_CACHE: cache,
      SOFTMETAL_CACHE: `${await cacheFolder()}/softmetal`, // compiled kernels are of use to all tests
    },
    stderr: "inherit",
  }).output();
  return JSON.parse(new TextDecoder().decode(stdout));
}

Deno.test({
  name:
    "a GPU with a wrong kernel: auto takes the CPU with a warning, metal is an error that names op and case",
  async fn() {
    const library = await faultyLibrary();
    const cache = await Deno.makeTempDir();
    try {
      const auto = await outcome(library, cache, "auto");
      assertEquals([auto.device, auto.text], ["cpu", "72"]);
      assert(auto.checked > 10, `${auto.checked} reports of progress`);
      assertEquals(auto.warnings!.map(({ code }) => code), ["device_fallback"]);
      const { message } = auto.warnings![0];
      assertStringIncludes(message, "on the CPU instead of the GPU. Software Metal fails its self-check.");
      assertStringIncludes(message, 'op gather is wrong in the case "rows=');

      const metal = await outcome(library, cache, "metal");
      assertEquals([metal.error?.name, metal.error?.code], ["DeviceError", "self_check"]);
      assertStringIncludes(metal.error!.message, 'op gather is wrong in the case "rows=');
      assertStringIncludes(metal.error!.message, "markbase doctor");
      assertEquals(metal.checked, 0, "the result of the first process was not kept");

      const cpu = await outcome(library, cache, "cpu");
      assertEquals([cpu.text, cpu.warnings], ["72", []]);
    } finally {
      await Deno.remove(cache, { recursive: true });
    }
  },
});

Deno.test("a sound GPU passes its self-check once and answers", async () => {
  const { path } = await buildSoftMetalLibrary();
  const cache = await Deno.makeTempDir();
  try {
    const first = await outcome(path, cache, "auto");
    assertEquals([first.device, first.text, first.warnings], ["metal", "72", []]);
    assert(first.checked > 10);
    const second = await outcome(path, cache, "metal");
    assertEquals([second.device, second.text, second.checked], ["metal", "72", 0]);
  } finally {
    await Deno.remove(cache, { recursive: true });
  }
});
