/** The process of markbase in `speed.ts`: MODEL. Takes a request a line (`peers.ts` has them), answers with a line of JSON. */
import { load, type Model } from "../../mod.ts";
import { linesOf } from "./peers.ts";

let model: Model | undefined;

/** Seconds from the first of `count` + 1 greedy tokens to the last: the first one ends the prompt. */
async function decode(model: Model, [count, ...ids]: number[]): Promise<number> {
  let start: number | undefined;
  for await (const _ of model.generate(ids, { maxTokens: count + 1, temperature: 0, ignoreEos: true })) {
    start ??= performance.now();
  }
  return (performance.now() - start!) / 1e3;
}

for await (const line of linesOf(Deno.stdin.readable)) {
  const [what, ...words] = line.split(" ");
  const numbers = words.map(Number);
  const start = performance.now();
  let seconds: number | undefined;
  if (what === "load") model = await load(Deno.args[0], { device: "cpu", contextLength: 2048 });
  else if (what === "prefill") await model!.logits(numbers);
  else seconds = await decode(model!, numbers);
  console.log(JSON.stringify({ seconds: seconds ?? (performance.now() - start) / 1e3 }));
}
