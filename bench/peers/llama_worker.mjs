// The process of llama.cpp in speed.ts, on Node: MODULES MODEL.gguf THREADS. Takes a request a line, answers with seconds.
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [modules, modelPath, threads] = process.argv.slice(2);
const { getLlama, LlamaLogLevel } = await import(
  pathToFileURL(`${modules}/node_modules/node-llama-cpp/dist/index.js`)
);
const PROMPT = 16;
let model, sequence, llama;

const ids = (count, seed, vocabulary) =>
  Array.from(
    { length: count },
    (_, i) => 1000 % vocabulary + (seed * 104729 + i * 7919) % (vocabulary * 3 >> 2),
  );

async function run({ what, tokens, seed }) {
  if (what === "load") {
    llama ??= await getLlama({
      gpu: false,
      build: "never",
      maxThreads: Number(threads),
      logLevel: LlamaLogLevel.error,
    });
    model = await llama.loadModel({ modelPath, gpuLayers: 0 });
    const wanted = { ideal: Number(threads), min: Number(threads) };
    const context = await model.createContext({ contextSize: 2048, batchSize: 512, threads: wanted });
    sequence = context.getSequence();
    return;
  }
  const vocabulary = 262144;
  await sequence.clearHistory();
  if (what === "prefill") {
    return void await sequence.evaluateWithoutGeneratingNewTokens(ids(tokens, seed, vocabulary));
  }
  const stream = sequence.evaluate(ids(PROMPT, seed, vocabulary), { temperature: 0, yieldEogToken: true });
  await stream.next();
  const start = performance.now();
  for (let i = 0; i < tokens; i++) await stream.next();
  const seconds = (performance.now() - start) / 1e3;
  await stream.return?.();
  return seconds;
}

for await (const line of createInterface({ input: process.stdin })) {
  const start = performance.now();
  const seconds = await run(JSON.parse(line)) ?? (performance.now() - start) / 1e3;
  console.log(JSON.stringify({ seconds }));
}
