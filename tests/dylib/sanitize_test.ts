import { assert } from "@std/assert";
import { encodeInput } from "../../src/engine/input.ts";
import { encodePlan } from "../../src/schedule/plan.ts";
import {
  elementarySample,
  expertSample,
  fusedSample,
  type Sample,
  sampleBlock,
  sampleInput,
  towerSample,
} from "../ffi/sample.ts";
import { buildSanitized, hasSanitizers, type Sanitizers } from "./sanitized.ts";

// An instrumented library takes minutes to compile, so these run only where they are asked for.
const isAsked = Deno.env.get("MARKBASE_SANITIZE") !== undefined;
const generations = Deno.env.get("MARKBASE_SANITIZE_GENERATIONS") ?? "8";

const samples: Record<string, Sample> = {
  fused: fusedSample(),
  elementary: elementarySample(),
  experts: expertSample(),
  towers: towerSample(),
};

/** One decode row of the fused sample, at the first position of a page. */
function decodeBlock(): Uint8Array<ArrayBuffer> {
  const { sequences, groups, vocabularySize } = sampleInput();
  return encodeInput({
    rows: [{ token: 0, position: 32, sequence: 0, rowClass: "decode" }],
    outputs: [{ row: 0 }],
    sequences: [sequences[1]],
    groups,
    vocabularySize,
    outputMask: 0b1110,
  });
}

/** Writes samples as `samples.h` reads them. */
async function withSamples(use: (folder: string) => Promise<void>): Promise<void> {
  const folder = await Deno.makeTempDir();
  const write = async (name: string, { plan, weights }: Sample, input: Uint8Array<ArrayBuffer>) => {
    await Deno.writeFile(`${folder}/${name}.plan`, encodePlan(plan));
    await Deno.writeFile(`${folder}/${name}.weights`, weights);
    await Deno.writeFile(`${folder}/${name}.input`, input);
  };
  try {
    for (const [name, sample] of Object.entries(samples)) await write(name, sample, sampleBlock());
    await write("decode", samples.fused, decodeBlock());
    await use(folder);
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}

/** What a program prints. Fails where it finds something. */
async function printed(
  executable: string,
  args: string[],
  env: Record<string, string>,
): Promise<Record<string, number>> {
  const options = { ASAN_OPTIONS: "detect_leaks=0", ...env };
  const { success, stdout, stderr } = await new Deno.Command(executable, {
    args,
    env: options,
    stdout: "piped",
    stderr: "piped",
  }).output();
  assert(success, new TextDecoder().decode(stderr).slice(0, 8000));
  return JSON.parse(new TextDecoder().decode(stdout));
}

Deno.test({
  name: "hostile plans and input blocks never make the CPU device touch a byte outside its buffers",
  ignore: !isAsked || !await hasSanitizers("address,undefined"),
  async fn() {
    const executable = await buildSanitized("sanitize.cpp", "address,undefined");
    await withSamples(async (folder) => {
      for (const name of Object.keys(samples)) {
        for (const level of Deno.build.arch === "x86_64" ? ["scalar", ""] : [""]) {
          const { refused, ran } = await printed(executable, [`${folder}/${name}`], { MARKBASE_CPU: level });
          assert(refused > 1000 && ran > 500, `${refused} refused, ${ran} ran`);
        }
      }
    });
  },
});

for (const sanitizers of ["thread", "address,undefined"] as const satisfies Sanitizers[]) {
  Deno.test({
    name: `threads that use passes, buffers and devices at once get what each gets alone (${sanitizers})`,
    ignore: !isAsked || !await hasSanitizers(sanitizers),
    async fn() {
      const executable = await buildSanitized("threads.cpp", sanitizers);
      await withSamples(async (folder) => {
        const counts = await printed(executable, [folder, generations, "1"], {});
        // Whatever can happen did.
        for (const [what, count] of Object.entries(counts)) assert(count > 0, `${what}: none`);
      });
    },
  });
}
