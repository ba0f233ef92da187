/**
 * What a drafter gains: tokens of a forward, drafts that were right, and time with and without it.
 *
 *     deno run -A bench/speculation.ts [--model FOLDER] [--drafter FOLDER] [--tokens 64] [--repetitions 5] [--drafts 4]
 *
 * Prompts are those of the shipped model's golden cases; greedy.
 */
import { load, type Message } from "../mod.ts";
import { parseFlags } from "../src/cli/args.ts";
import { loadFlags, loadOptions } from "../src/cli/options.ts";
import { median } from "./statistics.ts";

const { values } = parseFlags(Deno.args, {
  ...loadFlags,
  tokens: { type: "number", help: "of a reply at most" },
  repetitions: { type: "number", help: "how often" },
  drafts: { type: "number", help: "of each forward, 1 to 8 (default: as many as pay)" },
});
const drafter = values.drafter ?? new URL("../examples/tiny-drafter", import.meta.url).pathname;
await using model = await load(values.model ?? "tiny", { ...loadOptions(values), drafter });
const folder = new URL("../tests/fixtures/tiny/", import.meta.url);
const cases: [string, Message[], boolean][] = [];
for (const name of ["text_sum", "text_think", "text_recall", "text_long", "text_story", "text_bytes"]) {
  const golden = JSON.parse(await Deno.readTextFile(new URL(`${name}.json`, folder)));
  cases.push([name, golden.messages, golden.enable_thinking]);
}
const rejections = JSON.parse(await Deno.readTextFile(new URL("drafter_rejections.json", folder)));
rejections.forEach(({ messages }: { messages: Message[] }, i: number) =>
  cases.push([`out of domain ${i}`, messages, false])
);

/** Milliseconds of a reply, by repetition. */
async function time(messages: Message[], thinking: boolean, speculative: boolean | number) {
  const options = { temperature: 0, maxTokens: values.tokens ?? 64, thinking, speculative };
  const times: number[] = [];
  let reply = await model.chat(messages, options);
  for (let i = 0; i < (values.repetitions ?? 5); i++) {
    const started = performance.now();
    reply = await model.chat(messages, options);
    times.push(performance.now() - started);
  }
  return { milliseconds: median(times), reply };
}

console.log("prompt            tokens  forwards  tokens/forward  drafts right   plain ms  with drafter ms");
let tokens = 0, forwards = 0, plainTime = 0, draftedTime = 0;
for (const [name, messages, thinking] of cases) {
  const plain = await time(messages, thinking, false);
  const drafted = await time(messages, thinking, values.drafts ?? true);
  if (plain.reply.text !== drafted.reply.text) throw new Error(`${name}: the texts differ`);
  const { speculation, usage: { completionTokens } } = drafted.reply;
  const { drafted: made, accepted, forwards: own } = speculation!;
  tokens += completionTokens;
  forwards += own;
  plainTime += plain.milliseconds;
  draftedTime += drafted.milliseconds;
  console.log(
    name.padEnd(16) + String(completionTokens).padStart(8) + String(own).padStart(10) +
      (completionTokens / own).toFixed(2).padStart(16) + `${accepted} of ${made}`.padStart(14) +
      plain.milliseconds.toFixed(1).padStart(11) + drafted.milliseconds.toFixed(1).padStart(17),
  );
}
console.log(
  `all: ${(tokens / forwards).toFixed(2)} tokens a forward; ${
    (plainTime / draftedTime).toFixed(2)
  } times as fast as without`,
);
