// The process of node-llama-cpp in speed.ts, on Node: MODULES MODEL.gguf THREADS. Takes a request a line (peers.ts has them).
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [modules, modelPath, threads] = process.argv.slice(2);
const { getLlama, LlamaLogLevel } = await import(
  pathToFileURL(`${modules}/node_modules/node-llama-cpp/dist/index.js`)
);
let sequence;

async function load() {
  const llama = await getLlama({
    gpu: false,
    build: "never",
    maxThreads: Number(threads),
    logLevel: LlamaLogLevel.error,
  });
  const model = await llama.loadModel({ modelPath, gpuLayers: 0 });
  const wanted = { ideal: Number(threads), min: Number(threads) };
  const context = await model.createContext({ contextSize: 2048, batchSize: 512, threads: wanted });
  sequence = context.getSequence();
}

async function decode(count, ids) {
  const stream = sequence.evaluate(ids, { temperature: 0, yieldEogToken: true });
  await stream.next();
  const start = performance.now();
  for (let i = 0; i < count; i++) await stream.next();
  const seconds = (performance.now() - start) / 1e3;
  await stream.return?.();
  return seconds;
}

for await (const line of createInterface({ input: process.stdin })) {
  const [what, ...numbers] = line.split(" ");
  await sequence?.clearHistory();
  const start = performance.now();
  let seconds;
  if (what === "load") await load();
  else if (what === "prefill") await sequence.evaluateWithoutGeneratingNewTokens(numbers.map(Number));
  else seconds = await decode(Number(numbers[0]), numbers.slice(1).map(Number));
  console.log(JSON.stringify({ seconds: seconds ?? (performance.now() - start) / 1e3 }));
}
