/** `markbase bench`: how fast a model runs here, through the same calls as any script's. */
import type { MemoryReport, Model } from "../../mod.ts";
import { integer } from "../arguments.ts";
import { checkWords, describeFlags, parseFlags } from "./args.ts";
import { loadFlags, loadModel } from "./options.ts";
import { ProgressBar } from "./progress.ts";
import { bytes, table, write } from "./terminal.ts";

const flags = {
  ...loadFlags,
  prompt: { type: "number", value: "N", help: "tokens of the prompt (default: 512)" },
  tokens: { type: "number", value: "N", help: "tokens to generate, 2 at least (default: 64)" },
  sequences: { type: "number", value: "N", help: "prompts at the same time (default: 1)" },
  repetitions: {
    type: "number",
    value: "N",
    help: "runs that are timed, after one that is not (default: 3)",
  },
  json: { type: "boolean", help: "print everything as one JSON object" },
} as const;

/** Help text of the command. */
export const help =
  `markbase bench [SOURCE]\n\nTimes prompts of random tokens, none of them cached, and greedy generation after them.\n\n${
    describeFlags(flags)
  }`;

/** Tokens a second of each timed run. */
interface Rates {
  prompt: number[];
  generation: number[];
}

/** What `--json` prints. */
interface Result {
  model: string;
  device: string;
  precision: string;
  kvCache: string;
  /** of the prompt, and generated after it */ tokens: { prompt: number; generation: number };
  sequences: number;
  loadSeconds: number;
  tokensPerSecond: Rates;
  memory: MemoryReport;
}

/** Runs the command with the words after its name. */
export async function bench(args: string[], signal: AbortSignal): Promise<void> {
  const { values, words } = parseFlags(args, flags);
  checkWords(words, values.model === undefined ? 1 : 0);
  const prompt = integer("--prompt", values.prompt, 1, 2 ** 20) ?? 512;
  const generation = integer("--tokens", values.tokens, 2, 2 ** 20) ?? 64;
  const sequences = integer("--sequences", values.sequences, 1, 256) ?? 1;
  const repetitions = integer("--repetitions", values.repetitions, 1, 1000) ?? 3;
  const source = values.model ?? words[0] ?? "tiny";
  using bar = new ProgressBar();
  const started = performance.now();
  await using model = await loadModel({ ...values, model: source }, bar, signal);
  const loadSeconds = (performance.now() - started) / 1e3;
  const rates: Rates = { prompt: [], generation: [] };
  for (let i = 0; i <= repetitions; i++) {
    const prompts = Array.from({ length: sequences }, (_, s) => randomIds(model, prompt, i * sequences + s));
    const run = await time(model, prompts, generation, signal);
    bar.update({ stage: "bench", completed: i + 1, total: repetitions + 1 });
    if (i === 0) continue; // pages touched, pipelines made
    rates.prompt.push(sequences * prompt / run.promptSeconds);
    rates.generation.push(sequences * (generation - 1) / run.generationSeconds);
  }
  bar.stop();
  const result: Result = {
    model: source,
    device: model.explain().device.name,
    precision: values.precision ?? "fast",
    kvCache: values["kv-cache"] ?? "f16",
    tokens: { prompt, generation },
    sequences,
    loadSeconds,
    tokensPerSecond: rates,
    memory: model.memory(),
  };
  await write(Deno.stdout, (values.json ? JSON.stringify(result) : describe(result)) + "\n");
}

/** Ids that differ from the first on, so that no run finds its prompt in the cache; none stands for media. */
function randomIds({ config: { vocabularySize, tokens } }: Model, count: number, seed: number): number[] {
  const placeholders = [tokens.image, tokens.audio, tokens.video];
  let state = seed + 1;
  return Array.from({ length: count }, () => {
    state = Math.imul(state, 0x9e3779b1) + 0x7f4a7c15 >>> 0;
    const id = state % vocabularySize;
    return placeholders.includes(id) ? 0 : id;
  });
}

/** Seconds until every prompt has its first token, and from then on until all are done. */
async function time(
  model: Model,
  prompts: readonly number[][],
  maxTokens: number,
  signal: AbortSignal,
): Promise<{ promptSeconds: number; generationSeconds: number }> {
  const started = performance.now();
  const firsts = await Promise.all(prompts.map(async (ids) => {
    let first = 0;
    for await (const _ of model.generate(ids, { maxTokens, temperature: 0, ignoreEos: true, signal })) {
      if (first === 0) first = performance.now();
    }
    return first;
  }));
  const ended = performance.now(), last = Math.max(...firsts);
  return { promptSeconds: (last - started) / 1e3, generationSeconds: (ended - last) / 1e3 };
}

function describe(result: Result): string {
  const { tokens, sequences, tokensPerSecond, memory } = result;
  const row = (name: string, count: number, rates: number[]) => {
    const sorted = [...rates].sort((a, b) => a - b);
    const shown = [sorted[sorted.length >> 1], sorted[0], sorted[sorted.length - 1]];
    return [name, count, ...shown.map((rate) => rate.toFixed(1))];
  };
  return [
    `${result.model} on ${result.device}, ${result.precision}, ${result.kvCache} cache, loaded in ${
      result.loadSeconds.toFixed(2)
    } s`,
    `weights ${bytes(memory.weights)}, cache ${bytes(memory.kv)}, activations ${bytes(memory.activations)}`,
    ...(sequences > 1 ? [`${sequences} sequences at once; the rates are of all together`] : []),
    table([
      ["", "tokens", "tokens/s", "slowest", "fastest"],
      row("prompt", tokens.prompt, tokensPerSecond.prompt),
      row("generation", tokens.generation, tokensPerSecond.generation),
    ]),
  ].join("\n");
}
