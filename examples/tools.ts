/**
 * A model that calls functions: it asks for them, the script runs them, and it answers with what they returned.
 *
 *     deno run -A examples/tools.ts
 */
import { load, type Message, type Tool } from "../mod.ts";

/** The functions, by name. */
const functions: Record<string, (args: Record<string, unknown>) => string> = {
  get_weather: ({ city }) => city === "Paris" ? "sunny, 21 degrees" : "rainy, 9 degrees",
};

const tools: Tool[] = [{
  type: "function",
  function: {
    name: "get_weather",
    description: "Get the weather in a city.",
    parameters: {
      type: "object",
      properties: { city: { type: "string", description: "The city." } },
      required: ["city"],
    },
  },
}];

await using model = await load("tiny");

for (const city of ["Paris", "Oslo"]) {
  const messages: Message[] = [{ role: "user", content: `What is the weather in ${city}?` }];
  console.log(`user: ${messages[0].content}`);
  let reply = await model.chat(messages, { tools, temperature: 0 });
  while (reply.finishReason === "toolCalls") {
    messages.push({ role: "assistant", content: null, toolCalls: reply.toolCalls });
    for (const { id, name, arguments: args } of reply.toolCalls) {
      const result = functions[name](args);
      console.log(`call: ${name}(${JSON.stringify(args)}) is "${result}"`);
      messages.push({ role: "tool", name, toolCallId: id, content: result });
    }
    reply = await model.chat(messages, { tools, temperature: 0 });
  }
  console.log(`model: ${reply.text}`);
}
