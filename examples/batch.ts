/**
 * Many requests in one call: conversations and texts to continue, each with options of its own. The replies keep their order.
 *
 *     deno run -A examples/batch.ts
 */
import { type BatchRequest, load } from "../mod.ts";

const sums: BatchRequest[] = [[27, 45], [8, 5], [60, 31]].map(([a, b]) => [
  { role: "user", content: `What is ${a} + ${b}?` },
]);
const requests: BatchRequest[] = [
  ...sums,
  { messages: [{ role: "user", content: "What is the capital of France?" }], logprobs: true },
  { prompt: "Once upon a time", maxTokens: 12 },
];

await using model = await load("tiny");
const replies = await model.batch(requests, { temperature: 0 });

for (const { text, usage, logprobs } of replies) {
  const certainty = logprobs
    ? `, its first token with ${(100 * Math.exp(logprobs[0].logprob)).toFixed(0)} %`
    : "";
  console.log(
    `${JSON.stringify(text)} (${usage.promptTokens} + ${usage.completionTokens} tokens${certainty})`,
  );
}
