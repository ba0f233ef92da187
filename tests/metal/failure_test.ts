/** R68: command buffers that fail while a model answers: the calls that are part of them say so, and what follows is as ever. */
import { assert, assertEquals } from "@std/assert";
import { DeviceError } from "../../mod.ts";
import { generated } from "../support/calls.ts";
import { fixtureModel } from "../support/models.ts";
import { loadMetal } from "./load.ts";
import { SoftwareMetal } from "./metal.ts";
import { PLAIN, PROMPTS } from "./together.ts";

const TARGET = fixtureModel("e2b");

Deno.test("R68: e2b on software Metal answers as ever after a command buffer that failed", {
  ignore: Deno.build.os !== "linux" || TARGET === null,
}, async () => {
  await using model = await loadMetal(TARGET!);
  const metal = await SoftwareMetal.open();
  const expected: number[][] = [];
  for (const ids of PROMPTS) expected.push(await generated(model, ids, PLAIN));
  let rejected = 0;
  for (const nth of [1, 2, 4]) {
    metal.injectError(nth, 11); // the GPU is gone
    const settled = await Promise.allSettled(PROMPTS.map((ids) => generated(model, ids, PLAIN)));
    settled.forEach((result, i) => {
      if (result.status === "fulfilled") return assertEquals(result.value, expected[i]);
      assert(
        result.reason instanceof DeviceError && result.reason.code === "device_lost",
        `${result.reason}`,
      );
      rejected++;
    });
    assertEquals(await Promise.all(PROMPTS.map((ids) => generated(model, ids, PLAIN))), expected, `${nth}`);
  }
  assert(rejected >= 3, `${rejected} calls were part of a command buffer that failed`);
});
