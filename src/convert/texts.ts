/** Short texts on which a conversion is calibrated and measured, where the user gives none. */
import type { Checkpoint } from "../checkpoint/open.ts";
import { openText } from "../engine/open_text.ts";
import { InvalidArgument } from "../errors.ts";

/** Texts as token ids: one half to choose scales by, the other to measure the result on. */
export interface Samples {
  calibration: number[][];
  held: number[][];
  /** for the report */ from: string;
}

const PAIRS: readonly (readonly [question: string, answer: string])[] = [
  ["What is 27 + 45?", "72"],
  ["What is 63 - 28?", "35"],
  ["What is the capital of Norway?", "The capital of Norway is Oslo."],
  ["What is the capital of Japan?", "The capital of Japan is Tokyo."],
  ["What day comes after Monday?", "Tuesday."],
  ["What month comes before June?", "May."],
  ["What is the opposite of hot?", "cold"],
  ["What is the opposite of early?", "late"],
  ["Count from 3 to 11.", "3, 4, 5, 6, 7, 8, 9, 10, 11"],
  ["Count down from 9 to 2.", "9, 8, 7, 6, 5, 4, 3, 2"],
  ["Spell the word garden.", "g-a-r-d-e-n"],
  ["Spell the word market.", "m-a-r-k-e-t"],
  ["How many days are in April?", "April has 30 days."],
  ["How many days are in August?", "August has 31 days."],
  ["Which is larger, 42 or 24?", "42"],
  ["Which is smaller, 17 or 71?", "17"],
  ["Which country has the capital Madrid?", "Madrid is the capital of Spain."],
  ["Cairo is the capital of which country?", "Cairo is the capital of Egypt."],
  ["What comes next: 4, 7, 10?", "13"],
  ["What comes next: 20, 25, 30?", "35"],
  ["How many letters are in the word window?", "6"],
  ["How many letters are in the word tree?", "4"],
  ["Write river in capital letters.", "RIVER"],
  ["Write bread in capital letters.", "BREAD"],
];

const MOST_TOKENS = 192; // of one text

/**
 * The built-in questions with answers, in the model's chat format if it has one, or the paragraphs of `text`. Every other
 * one is held back. Null for a checkpoint without a tokenizer.
 */
export async function samplesFor(
  checkpoint: Checkpoint,
  text: { name: string; content: string } | undefined,
  signal: AbortSignal | undefined,
): Promise<Samples | null> {
  const { tokenizer, template } = await openText(checkpoint, signal);
  if (tokenizer === undefined) return null;
  const bos = tokenizer.bos === undefined ? [] : [tokenizer.bos];
  const plain = (text: string) => [...bos, ...tokenizer.encode(text)].slice(0, MOST_TOKENS);
  let all: number[][];
  if (text !== undefined) {
    all = text.content.split(/\n\s*\n/).map((part) => part.trim()).filter((part) => part !== "").map(plain);
    if (all.length < 2) {
      throw new InvalidArgument(
        `${text.name} has ${all.length} paragraphs; two are the least, parted by empty lines.`,
      );
    }
  } else if (template !== undefined) {
    all = PAIRS.map(([question, answer]) => {
      const { segments } = template.render(
        [{ role: "user", content: question }, { role: "assistant", content: answer }],
        { addGenerationPrompt: false },
      );
      return tokenizer.encodeSegments(segments).slice(0, MOST_TOKENS);
    });
  } else all = PAIRS.map(([question, answer]) => plain(`${question}\n${answer}`));
  all = all.filter((ids) => ids.length > 1);
  return {
    calibration: all.filter((_, i) => i % 2 === 0),
    held: all.filter((_, i) => i % 2 === 1),
    from: text?.name ?? "the built-in questions",
  };
}
