import { assert, assertEquals } from "@std/assert";
import type { Message, Tool } from "../../src/chat/messages.ts";
import { gemmaTemplate, tinyTemplate } from "./support.ts";

interface JinjaCase {
  messages: Message[];
  options: { tools?: Tool[]; enable_thinking?: boolean; add_generation_prompt: boolean };
  updated: string;
  launch: string;
  tiny: string;
}

const cases: JinjaCase[] = JSON.parse(
  await Deno.readTextFile(`${import.meta.dirname}/../fixtures/chat/jinja.json`),
);

Deno.test("random conversations and schemas render as Python's Jinja2 renders them", async () => {
  const templates = {
    updated: await gemmaTemplate("updated"),
    launch: await gemmaTemplate("launch"),
    tiny: await tinyTemplate(),
  };
  let compared = 0;
  for (const golden of cases) {
    const { messages, options } = golden;
    for (const name of ["updated", "launch", "tiny"] as const) {
      // The small model's template keeps channels of earlier replies; here they are always split off.
      const channels = messages.some(({ content }) =>
        typeof content === "string" && content.includes("<|channel>")
      );
      if (name === "tiny" && channels) continue;
      const { text } = templates[name].render(messages, {
        tools: options.tools,
        thinking: options.enable_thinking,
        addGenerationPrompt: options.add_generation_prompt,
      });
      assertEquals(text, golden[name], name);
      compared++;
    }
  }
  assert(compared > 80, String(compared));
});
