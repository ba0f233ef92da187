/**
 * Accuracy on a text: its perplexity in exact and in fast mode, the divergence of fast from exact mode, as rows of a prompt and
 * as decode rows, and the perplexity under llama.cpp with the same ids, where `llama_worker.cpp` beside this file was compiled
 * (it says how):
 *
 *     deno run -A bench/peers/perplexity.ts MODEL [--text FILE] [--device cpu] [--decode 192] [--llama PROGRAM]
 *
 * All tokens but the first count; the text must fit the context.
 */
import { parseFlags } from "../../src/cli/args.ts";
import { klOfLogits } from "../../src/convert/divergence.ts";
import { loadWith } from "../../src/engine/load.ts";
import { LOGITS_OUTPUT, type Results } from "../../src/engine/results.ts";
import { lossOf } from "../../tests/support/models.ts";
import { llamaPeer, Peer } from "./peers.ts";

const { values, words: [source] } = parseFlags(Deno.args, {
  text: { type: "string", help: "file of the text" },
  device: { type: "string", help: "where markbase runs (default: cpu)" },
  decode: { type: "number", help: "tokens of the text, the first ones, that also run as decode rows" },
  llama: { type: "string", help: "the compiled llama_worker.cpp" },
});
const text = await Deno.readTextFile(
  values.text ?? new URL("../../tests/fixtures/gemma3_270m/text.txt", import.meta.url),
);

function report(who: string, nll: number): void {
  console.log(`${who.padEnd(28)} nll ${nll.toFixed(5)}  perplexity ${Math.exp(nll).toFixed(4)}`);
}

/** Logits of each of `ids`, one forward each but for the first: [ids, V]. */
async function decodeRows(
  model: Awaited<ReturnType<typeof loadWith>>,
  ids: readonly number[],
): Promise<Float32Array> {
  const { forward } = model.engine;
  const V = model.config.vocabularySize;
  const logits = new Float32Array(ids.length * V);
  const sequence = forward.sequence();
  const keep = (row: number) => (results: Results) => logits.set(results.logits(0), row * V);
  await forward.prefill(sequence, ids.slice(0, 1), { outputs: 1, mask: LOGITS_OUTPUT }, keep(0));
  for (const [i, id] of ids.entries()) {
    if (i > 0) await forward.decode(sequence, id, {}, LOGITS_OUTPUT, undefined, keep(i));
  }
  sequence.dispose();
  return logits;
}

let ids: number[] = [];
const rows: Record<string, Float32Array[]> = {};
let V = 0;
for (const precision of ["exact", "fast"] as const) {
  const device = (values.device ?? "cpu") as "cpu";
  await using model = await loadWith(source, { device, precision, contextLength: 4096 }, {});
  V = model.config.vocabularySize;
  const begin = model.config.tokens.bos === null ? [] : [model.config.tokens.bos];
  ids = [...begin, ...model.tokenizer.encode(text)];
  const prompt = await model.logits(ids, { last: ids.length });
  const decoded = await decodeRows(model, ids.slice(0, values.decode ?? 192));
  report(`markbase ${precision}`, lossOf(prompt, ids, V));
  rows[precision] = [prompt, decoded];
}
for (const [i, what] of ["prompt", "decode"].entries()) {
  const [exact, fast] = [rows.exact[i], rows.fast[i]];
  const count = exact.length / V;
  const row = (logits: Float32Array, at: number) => logits.subarray(at * V, (at + 1) * V);
  const all = Array.from({ length: count }, (_, at) => klOfLogits(row(exact, at), row(fast, at)));
  console.log(
    `${`fast from exact, ${what} rows`.padEnd(28)} mean KL ${
      (all.reduce((a, b) => a + b) / count).toPrecision(2)
    }, ` +
      `largest ${Math.max(...all).toPrecision(2)} nats over ${count} tokens; perplexity of these ` +
      `${Math.exp(lossOf(exact, ids.slice(0, count), V)).toFixed(4)} and ${
        Math.exp(lossOf(fast, ids.slice(0, count), V)).toFixed(4)
      }`,
  );
}
if (values.llama !== undefined) {
  for (const kv of ["f16", "f32"]) {
    using llama = new Peer(llamaPeer(values.llama, source, navigator.hardwareConcurrency, "512", kv));
    await llama.ask("load");
    report(`llama.cpp, ${kv} KV`, (await llama.ask("loss", ...ids)).loss!);
  }
}
