/**
 * How far 8-bit keys and values move a model's predictions: the divergence of its probabilities from those with an f16 cache,
 * in nats, at 24 positions at every eighth of a text.
 *
 *     deno run -A bench/kv_cache.ts MODEL [--text FILE] [--tokens 2000]
 */
import { load } from "../mod.ts";
import { parseFlags } from "../src/cli/args.ts";
import { klOfLogits } from "../src/convert/divergence.ts";

const { values, words } = parseFlags(Deno.args, {
  text: { type: "string", help: "what the model reads (default: this project's licence)" },
  tokens: { type: "number", help: "of the text" },
});
const count = values.tokens ?? 2000;
const LAST = 24;
const source = words[0] ?? "tiny";
const options = { device: "cpu", precision: "exact", contextLength: count } as const;
await using numbers = await load(source, { ...options, kvCache: "f16" });
await using codes = await load(source, { ...options, kvCache: "q8" });
const text = await Deno.readTextFile(values.text ?? new URL("../LICENSE", import.meta.url));
const begin = numbers.tokenizer.bos === undefined ? [] : [numbers.tokenizer.bos];
const ids = [...begin, ...numbers.tokenizer.encode(text)].slice(0, count);
const V = numbers.config.vocabularySize;

let sum = 0, rows = 0, most = 0;
for (let part = 1; part <= 8; part++) {
  const end = Math.floor(ids.length * part / 8);
  const [p, q] = [
    await numbers.logits(ids.slice(0, end), { last: LAST }),
    await codes.logits(ids.slice(0, end), { last: LAST }),
  ];
  for (let row = 0; row < LAST; row++) {
    const [a, b] = [p, q].map((logits) => logits.subarray(row * V, (row + 1) * V));
    const divergence = klOfLogits(a, b);
    sum += divergence;
    rows++;
    most = Math.max(most, divergence);
  }
  console.log(
    `up to token ${end}: mean ${(sum / rows).toFixed(5)}, largest ${
      most.toFixed(5)
    } nats over ${rows} positions`,
  );
}
