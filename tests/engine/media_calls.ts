/** What tests of media in a model's calls have in common. */
import type { ContentPart, LoadOptions, Message } from "../../mod.ts";
import { loadWith } from "../../src/engine/load.ts";
import type { LoadedModel } from "../../src/engine/model.ts";
import { EXACT } from "../support/calls.ts";
import { TINY } from "../support/models.ts";

export const FIXTURES = new URL("../fixtures/tiny/", import.meta.url).pathname;
export const GREEDY = { temperature: 0 } as const;
export const image = (name: string): ContentPart => ({ type: "image", image: `${FIXTURES}${name}.png` });
export const audio = (name: string): ContentPart => ({ type: "audio", audio: `${FIXTURES}${name}.wav` });
export const text = (text: string): ContentPart => ({ type: "text", text });
export const user = (...content: ContentPart[]): Message => ({ role: "user", content });
export const assistant = (content: string): Message => ({ role: "assistant", content });

/** A model and how often its towers ran. */
export async function counted(
  options: LoadOptions = {},
): Promise<{ model: LoadedModel; runs: { image: number; audio: number } }> {
  const model = await loadWith(TINY, { ...EXACT, ...options }, {});
  const { towers } = model.engine;
  const runs = { image: 0, audio: 0 };
  const [see, hear] = [towers.embedImage.bind(towers), towers.embedAudio.bind(towers)];
  towers.embedImage = (...args) => (runs.image++, see(...args));
  towers.embedAudio = (...args) => (runs.audio++, hear(...args));
  return { model, runs };
}
