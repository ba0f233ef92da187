// The perplexity that llama.cpp gives a list of token ids, for `perplexity.ts`:
//   npm i -E node-llama-cpp@3.21.1 --ignore-scripts && node llama_perplexity.mjs MODEL.gguf IDS.json
// IDS.json is a list of ids, BOS included. All tokens but the first count. Prints one line of JSON.
import { readFileSync } from "node:fs";
import process from "node:process";

// No import statement: the package is no part of this project, only of the folder where this runs.
const { getLlama } = await import(String("node-llama-cpp"));
const [modelPath, idsPath] = process.argv.slice(2);
const ids = JSON.parse(readFileSync(idsPath, "utf8"));
const CHUNK = 16; // tokens whose probabilities are in memory at a time

const llama = await getLlama({ build: "never", gpu: false, logLevel: "error" });
const model = await llama.loadModel({ modelPath });
const context = await model.createContext({ contextSize: Math.max(512, ids.length + 1), threads: 2 });
const sequence = context.getSequence();
let sum = 0;
for (let start = 0; start + 1 < ids.length; start += CHUNK) {
  const end = Math.min(start + CHUNK, ids.length - 1);
  const input = ids.slice(start, end).map((id) => [id, { generateNext: { probabilities: true } }]);
  const results = await sequence.controlledEvaluate(input);
  for (let i = start; i < end; i++) sum -= Math.log(results[i - start].next.probabilities.get(ids[i + 1]));
}
const nll = sum / (ids.length - 1);
console.log(JSON.stringify({ tokens: ids.length, nll, perplexity: Math.exp(nll) }));
