/**
 * Perplexity of a text under a model, in exact and in fast mode, and under llama.cpp with the same ids, where
 * `llama_perplexity.cpp` beside this file was compiled (it says how):
 *
 *   deno run -A bench/peers/perplexity.ts MODEL [--text FILE] [--device cpu] [--peer PROGRAM]
 *
 * All tokens but the first count; the text must fit the context.
 */
import { load } from "../../mod.ts";
import { parseFlags } from "../../src/cli/args.ts";
import { lossOf } from "../../tests/support/models.ts";

const { values, words: [source] } = parseFlags(Deno.args, {
  text: { type: "string", help: "file of the text" },
  device: { type: "string", help: "where markbase runs (default: cpu)" },
  peer: { type: "string", help: "the compiled llama_perplexity.cpp" },
});
const text = await Deno.readTextFile(
  values.text ?? new URL("../../tests/fixtures/gemma3_270m/text.txt", import.meta.url),
);

function report(who: string, nll: number): void {
  console.log(`${who.padEnd(18)} nll ${nll.toFixed(5)}  perplexity ${Math.exp(nll).toFixed(4)}`);
}

let ids: number[] = [];
for (const precision of ["exact", "fast"] as const) {
  using model = await load(source, {
    device: (values.device ?? "cpu") as "cpu",
    precision,
    contextLength: 4096,
  });
  const begin = model.config.tokens.bos === null ? [] : [model.config.tokens.bos];
  ids = [...begin, ...model.tokenizer.encode(text)];
  report(
    `markbase ${precision}`,
    lossOf(await model.logits(ids, { last: ids.length }), ids, model.config.vocabularySize),
  );
}
if (values.peer !== undefined) {
  for (const kv of ["f16", "f32"]) {
    const child = new Deno.Command(values.peer, {
      args: [source, "512", kv],
      stdin: "piped",
      stdout: "piped",
      stderr: "inherit",
    }).spawn();
    const writer = child.stdin.getWriter();
    await writer.write(new TextEncoder().encode(ids.join(" ")));
    await writer.close();
    const { stdout, success } = await child.output();
    if (!success) throw new Error(`${values.peer} failed.`);
    report(`llama.cpp, ${kv} KV`, JSON.parse(new TextDecoder().decode(stdout)).nll);
  }
}
