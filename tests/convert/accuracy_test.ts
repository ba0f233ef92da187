/** Whether the shipped model still knows what it knew, after a conversion to 4 bits. */
import { assert } from "@std/assert";
import { load, type Model } from "../../mod.ts";
import { Random } from "../../src/conformance/random.ts";
import { TINY } from "../support/models.ts";
import { converted } from "./support.ts";

/** A question and its right answer. */
type Task = [question: string, answer: string];

const CAPITALS: Record<string, string> = {
  France: "Paris",
  Germany: "Berlin",
  Italy: "Rome",
  Spain: "Madrid",
  Norway: "Oslo",
  Sweden: "Stockholm",
  Finland: "Helsinki",
  Poland: "Warsaw",
  Austria: "Vienna",
  Greece: "Athens",
  Egypt: "Cairo",
  Kenya: "Nairobi",
  Japan: "Tokyo",
  China: "Beijing",
  Thailand: "Bangkok",
  Vietnam: "Hanoi",
  Canada: "Ottawa",
  Cuba: "Havana",
  Peru: "Lima",
  Chile: "Santiago",
};
const OPPOSITES =
  "hot/cold big/small up/down fast/slow open/closed wet/dry happy/sad early/late high/low full/empty " +
  "loud/quiet rich/poor strong/weak thick/thin wide/narrow deep/shallow clean/dirty day/night north/south first/last";
const DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split(" ");
const MONTHS = "January February March April May June July August September October November December".split(
  " ",
);
const WORDS =
  "garden kitchen forest river market school tower castle bridge library silver marble pepper walnut".split(
    " ",
  );

/** 180 questions of six kinds, the same at each call. */
function tasks(): Task[] {
  const random = new Random(2024);
  const number = (most: number) => Math.floor(random.uniform(0, most + 1));
  const sums = Array.from({ length: 60 }, (_, i): Task => {
    const [x, y] = [number(99), number(99)];
    if (i % 2 === 0) return [`What is ${x} + ${y}?`, String(x + y)];
    return [`What is ${Math.max(x, y)} - ${Math.min(x, y)}?`, String(Math.abs(x - y))];
  });
  const larger = Array.from({ length: 20 }, (): Task => {
    const x = number(98);
    const y = x + 1 + number(98 - x);
    return [`Which is larger, ${x} or ${y}?`, String(y)];
  });
  return [
    ...sums,
    ...larger,
    ...Object.entries(CAPITALS).map(([country, city]): Task => [
      `What is the capital of ${country}?`,
      `The capital of ${country} is ${city}.`,
    ]),
    ...OPPOSITES.split(" ").map((pair): Task => {
      const [a, b] = pair.split("/");
      return [`What is the opposite of ${a}?`, b];
    }),
    ...[...DAYS.keys()].map((i): Task => [`What day comes after ${DAYS[i]}?`, `${DAYS[(i + 1) % 7]}.`]),
    ...[...MONTHS.keys()].map((
      i,
    ): Task => [`What month comes before ${MONTHS[i]}?`, `${MONTHS[(i + 11) % 12]}.`]),
    ...WORDS.map((word): Task => [`Spell the word ${word}.`, [...word].join("-")]),
  ];
}

async function accuracy(model: Model, questions: readonly Task[]): Promise<number> {
  const replies = await model.batch(
    questions.map(([content]) => [{ role: "user" as const, content }]),
    { temperature: 0, maxTokens: 48 },
  );
  return replies.filter(({ text }, i) => text === questions[i][1]).length / questions.length;
}

Deno.test("a 4-bit conversion of the shipped model keeps its task accuracy within two points", async () => {
  const questions = tasks();
  assert(questions.length >= 150);
  await using original = await load(TINY, { device: "cpu" });
  const before = await accuracy(original, questions);
  const points = (share: number) => (100 * share).toFixed(1);
  for (const search of [false, true]) {
    await using out = await converted(TINY, { search, measure: true });
    await using conversion = await load(out.folder, { device: "cpu" });
    const after = await accuracy(conversion, questions);
    console.log(
      `${search ? "searched" : "by range"}: ${points(after)} % of ${questions.length} questions, bf16 ${
        points(before)
      } %, ` +
        `mean KL ${out.result.divergence!.kl.toPrecision(3)} nats a token`,
    );
    assert(before > 0.9, `bf16 answers ${points(before)} %`);
    assert(after > before - 0.02, `${points(after)} % after ${points(before)} %`);
  }
});
