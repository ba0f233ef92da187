/** The process of markbase in `speed.ts`: takes a request a line, answers with seconds. */
import { load, type Model } from "../../mod.ts";

/** What is to be timed. */
export interface Request {
  what: "load" | "prefill" | "decode";
  tokens?: number;
  /** of the prompt's random token ids */ seed?: number;
}

/** How long it took. */
export interface Response {
  seconds: number;
}

const PROMPT = 16; // tokens before those that are decoded

/** Token ids that depend on the seed alone, the same for every peer but for the vocabulary's size. */
function ids(count: number, seed: number, vocabulary: number): number[] {
  return Array.from(
    { length: count },
    (_, i) => 1000 % vocabulary + (seed * 104729 + i * 7919) % (vocabulary * 3 >> 2),
  );
}

async function run(model: Model, { what, tokens = 1, seed = 0 }: Request): Promise<number> {
  const vocabulary = model.config.vocabularySize;
  let start = performance.now();
  if (what === "prefill") {
    await model.logits(ids(tokens, seed, vocabulary));
  } else {
    let count = 0;
    const options = { maxTokens: tokens + 1, temperature: 0, ignoreEos: true };
    for await (const _ of model.generate(ids(PROMPT, seed, vocabulary), options)) {
      if (count++ === 0) start = performance.now(); // the first one ends the prompt
    }
  }
  return (performance.now() - start) / 1e3;
}

if (import.meta.main) {
  let model: Model | undefined;
  let rest = "";
  for await (const text of Deno.stdin.readable.pipeThrough(new TextDecoderStream())) {
    rest += text;
    for (let end = rest.indexOf("\n"); end >= 0; end = rest.indexOf("\n")) {
      const request: Request = JSON.parse(rest.slice(0, end));
      rest = rest.slice(end + 1);
      const start = performance.now();
      if (request.what === "load") model = await load(Deno.args[0], { device: "cpu", contextLength: 2048 });
      const seconds = request.what === "load"
        ? (performance.now() - start) / 1e3
        : await run(model!, request);
      const response: Response = { seconds };
      console.log(JSON.stringify(response));
    }
  }
}
