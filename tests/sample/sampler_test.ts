import { assert, assertEquals } from "@std/assert";
import { gumbel } from "../../src/sample/noise.ts";
import {
  argmax,
  type Candidates,
  rank,
  sampleCandidates,
  sampleRow,
  type SamplingOptions,
} from "../../src/sample/sampler.ts";

const PLAIN: SamplingOptions = { temperature: 1, topK: 0, topP: 1, minP: 0, seed: 1 };

/** What the device returns for a row: the best 256, and the log-sum-exp with an error like that of an f32 sum. */
function candidatesOf(
  logits: Float32Array,
  temperature: number,
  error: number,
  ranked = rank(logits),
): Candidates {
  const { ids, values, count } = ranked;
  let sum = 0;
  for (let i = 0; i < count; i++) sum += Math.exp((values[i] - values[0]) / temperature);
  const logSumExp = Math.fround(Math.log(sum * (1 + error)) + values[0] / temperature);
  const kept = Math.min(256, count);
  return {
    ids: ids.slice(0, kept),
    values: values.slice(0, kept),
    count: kept,
    more: kept === 256,
    vocabularySize: logits.length,
    logSumExp,
  };
}

/** The tokens that may be drawn, by the definition. */
function support(logits: Float32Array, { temperature: T, topK, topP, minP }: SamplingOptions): Set<number> {
  const order = [...logits.keys()].filter((id) => logits[id] > -Infinity)
    .sort((a, b) => logits[b] - logits[a] || a - b);
  const kept = topK > 0 ? order.slice(0, topK) : order;
  const weights = kept.map((id) => Math.exp((logits[id] - logits[order[0]]) / T));
  const total = weights.reduce((a, b) => a + b, 0);
  const allowed = new Set<number>();
  let before = 0;
  kept.forEach((id, i) => {
    if (i === 0 || ((topP === 1 || before / total < topP - 1e-12) && weights[i] >= minP * (1 - 1e-12))) {
      allowed.add(id);
    }
    before += weights[i];
  });
  return allowed;
}

/** A repeatable stream of numbers in [0, 1). */
function randomNumbers(seed: number): () => number {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ seed >>> 15, seed | 1);
    t ^= t + Math.imul(t ^ t >>> 7, t | 61);
    return ((t ^ t >>> 14) >>> 0) / 2 ** 32;
  };
}

/** Rows that tempt a sampler into mistakes. */
function adversarialRows(): [string, Float32Array][] {
  const random = randomNumbers(42);
  const row = (make: (id: number) => number, V = 1500) =>
    Float32Array.from({ length: V }, (_, id) => make(id));
  return [
    ["flat", row(() => 3)],
    ["almost flat", row(() => 3 + random() * 1e-3)],
    ["peaked", row((id) => id === 700 ? 25 : random() * 4)],
    ["two peaks", row((id) => id === 3 || id === 1499 ? 12 : random())],
    ["steps of ties", row((id) => Math.floor(id / 100))],
    ["tie across the 256th", row((id) => id < 200 ? 5 : id < 400 ? 4 : 0)],
    ["geometric", row((id) => -0.01 * id)],
    ["steep", row((id) => -0.7 * id)],
    ["noise", row(() => 8 * (random() - 0.5))],
    ["masked but for 300", row((id) => id % 5 === 0 ? random() * 3 : -Infinity)],
    ["masked but for 3", row((id) => id % 500 === 1 ? 1 : -Infinity)],
    ["small vocabulary", row(() => random() * 5, 200)],
    ["exactly 256 tokens", row(() => random() * 5, 256)],
    ["soft-capped", row((id) => id < 5 ? 30 : 29.9999)],
  ];
}

const OPTIONS: SamplingOptions[] = [];
for (const temperature of [0.05, 1, 4]) {
  for (const topK of [0, 1, 2, 64, 256, 300]) {
    for (const topP of [1, 0.95, 0.5, 0.01]) {
      for (const minP of [0, 0.05, 1]) OPTIONS.push({ temperature, topK, topP, minP, seed: 1234567890123 });
    }
  }
}

Deno.test("a draw from candidates is the draw from the whole row, or says that the row is needed", () => {
  let decided = 0, undecided = 0;
  for (const [name, logits] of adversarialRows()) {
    const ranked = rank(logits);
    for (const options of OPTIONS) {
      for (const error of [2e-6, -2e-6]) {
        const candidates = candidatesOf(logits, options.temperature, error, ranked);
        for (let position = 0; position < 3; position++) {
          const fromCandidates = sampleCandidates(candidates, options, position);
          if (fromCandidates === undefined) undecided++;
          else {
            decided++;
            assertEquals(
              fromCandidates,
              sampleRow(logits, options, position),
              `${name}: ${JSON.stringify(options)}`,
            );
          }
        }
      }
    }
  }
  assert(decided > 5000 && undecided > 500, `${decided} decided, ${undecided} undecided`);
});

Deno.test("every draw lies in the set that the truncations keep, and each of its likely tokens is drawn", () => {
  for (const [name, logits] of adversarialRows()) {
    for (const options of OPTIONS.filter((_, i) => i % 3 === 0)) {
      const allowed = support(logits, options);
      for (let position = 0; position < 4; position++) {
        const id = sampleRow(logits, options, position);
        assert(allowed.has(id), `${name}: ${JSON.stringify(options)} drew ${id}`);
      }
    }
  }
  const two = new Set<number>();
  const logits = Float32Array.of(0, 1, 1, -1, 1);
  for (let position = 0; position < 100; position++) {
    two.add(sampleRow(logits, { ...PLAIN, topK: 2 }, position));
  }
  assertEquals([...two].sort(), [1, 2]);
});

Deno.test("without any truncation the draw from a whole row is the largest sum of scaled logit and noise", () => {
  for (const [name, logits] of adversarialRows()) {
    for (const temperature of [0.05, 1, 4]) {
      for (let position = 0; position < 4; position++) {
        const scores = Float64Array.from(
          logits,
          (logit, id) => logit / temperature + gumbel(PLAIN.seed, position, id),
        );
        const id = sampleRow(logits, { ...PLAIN, temperature }, position);
        assertEquals(id, argmax(scores), `${name}, temperature ${temperature}`);
      }
    }
  }
});

Deno.test("top-p of a whole row keeps the shortest prefix of all its tokens that has the mass", () => {
  const random = randomNumbers(7);
  const long = Float32Array.from({ length: 20_000 }, () => -1.5 * Math.log(-Math.log(random())));
  for (const [name, logits] of [...adversarialRows(), ["long", long] as const]) {
    const { ids, values, count } = rank(logits);
    for (const temperature of [0.05, 0.7, 4]) {
      for (const topP of [0.999, 0.9, 0.3]) {
        const weights = Float64Array.from(
          { length: count },
          (_, i) => Math.exp((values[i] - values[0]) / temperature),
        );
        const wanted = topP * weights.reduce((a, b) => a + b);
        let kept = 0;
        for (let sum = 0; kept < count && sum < wanted; kept++) sum += weights[kept];
        for (let position = 0; position < 3; position++) {
          const scores = Array.from(
            { length: kept },
            (_, i) => values[i] / temperature + gumbel(PLAIN.seed, position, ids[i]),
          );
          assertEquals(
            sampleRow(logits, { ...PLAIN, temperature, topP }, position),
            ids[argmax(scores)],
            `${name}, temperature ${temperature}, top-p ${topP}`,
          );
        }
      }
    }
  }
});

Deno.test("without any truncation a peaked row is decided by its candidates, now and then by one of its tail", () => {
  // 250 likely tokens, 20,000 unlikely ones that are drawn in about one of 40 cases.
  const logits = Float32Array.from({ length: 20_256 }, (_, id) => id % 79 === 0 && id < 79 * 250 ? 9 : 1);
  const candidates = candidatesOf(logits, 1, 0);
  let decided = 0, tail = 0;
  for (let position = 0; position < 300; position++) {
    const whole = sampleRow(logits, PLAIN, position);
    if (logits[whole] < 9) tail++;
    const id = sampleCandidates(candidates, PLAIN, position);
    if (id === undefined) continue;
    decided++;
    assertEquals(id, whole);
  }
  assert(decided > 200 && decided <= 300 - tail && tail > 0, `${decided} decided, ${tail} in the tail`);
});

Deno.test("a draw that may ask for logits is that of the whole row, and asks for few of a light tail", () => {
  const random = randomNumbers(11);
  const rows: [string, Float32Array][] = [
    ...adversarialRows(),
    ["flat and long", new Float32Array(40_000)],
    ["heavy tail", Float32Array.from({ length: 20_100 }, (_, id) => id < 250 ? 9 : 4 + random())],
    ["light tail", Float32Array.from({ length: 20_100 }, (_, id) => id < 250 ? 9 : 1 - random())],
  ];
  let fromTail = 0;
  for (const [name, logits] of rows) {
    const ranked = rank(logits);
    for (const options of OPTIONS.filter(({ topK, topP }) => topK === 0 && topP === 1)) {
      const candidates = candidatesOf(logits, options.temperature, 0, ranked);
      const listed = new Set(candidates.ids as Uint32Array);
      for (let position = 0; position < 20; position++) {
        const asked = new Set<number>();
        const id = sampleCandidates(candidates, options, position, (id) => {
          assert(!listed.has(id) && !asked.has(id));
          asked.add(id);
          return logits[id];
        })!;
        const what = `${name}: ${JSON.stringify(options)} at ${position}`;
        assertEquals(id, sampleRow(logits, options, position), what);
        if (!listed.has(id)) fromTail++;
        if (name === "light tail" && options.temperature <= 1) assert(asked.size < 100, what);
      }
    }
  }
  assert(fromTail > 100, `${fromTail} of the tail`);
});

Deno.test("usual options never need more than the candidates", () => {
  for (const [name, logits] of adversarialRows()) {
    const options = { ...PLAIN, topK: 64, topP: 0.95 };
    assert(sampleCandidates(candidatesOf(logits, 1, 0), options, 0) !== undefined, name);
    assert(sampleCandidates(candidatesOf(logits, 1, 0), { ...PLAIN, temperature: 0 }, 0) !== undefined, name);
  }
});

Deno.test("drawn frequencies follow the softmax of the scaled logits", () => {
  const logits = Float32Array.of(1, 2, 0.5, 3, -1, 2.5, 0, 1.5);
  for (const temperature of [0.5, 1, 2]) {
    const weights = [...logits].map((value) => Math.exp(value / temperature));
    const total = weights.reduce((a, b) => a + b, 0);
    const counts = new Float64Array(8);
    const draws = 20_000;
    for (let position = 0; position < draws; position++) {
      counts[sampleRow(logits, { ...PLAIN, temperature }, position)]++;
    }
    const chi2 = counts.reduce(
      (sum, n, i) => sum + (n - draws * weights[i] / total) ** 2 / (draws * weights[i] / total),
      0,
    );
    assert(chi2 < 24.3, `temperature ${temperature}: chi-square ${chi2} with 7 degrees of freedom`);
  }
});

Deno.test("drawn frequencies follow the renormalised probabilities of what top-k and top-p keep", () => {
  const logits = Float32Array.from({ length: 1000 }, (_, id) => id < 5 ? 6 - id * 0.5 : -id / 500);
  const options = { ...PLAIN, topK: 5, topP: 0.9 };
  const kept = [...support(logits, options)];
  assertEquals(kept, [0, 1, 2, 3]);
  const weights = kept.map((id) => Math.exp(logits[id]));
  const total = weights.reduce((a, b) => a + b, 0);
  const counts = new Float64Array(kept.length);
  const draws = 20_000;
  const candidates = candidatesOf(logits, 1, 0);
  for (let seed = 0; seed < draws; seed++) {
    const id = sampleCandidates(candidates, { ...options, seed }, 17)!;
    counts[kept.indexOf(id)]++;
    if (seed === 400) assert(counts.every((n) => n > 0));
  }
  const chi2 = counts.reduce(
    (sum, n, i) => sum + (n - draws * weights[i] / total) ** 2 / (draws * weights[i] / total),
    0,
  );
  assert(chi2 < 16.3, `chi-square ${chi2} with 3 degrees of freedom`);
});

Deno.test("a row is ranked by logit and then by id, zeros of both signs and negative logits included", () => {
  const logits = Float32Array.of(-0, 2, 0, -1.5, 2, -Infinity, 1e-40, -1e-40, 3e38, -3e38);
  assertEquals([...rank(logits).ids], [8, 1, 4, 6, 0, 2, 7, 3, 9]);
});

Deno.test("greedy takes the largest logit, the lower id of equals, whatever the seed", () => {
  const logits = Float32Array.of(1, 5, 2, 5, 0);
  assertEquals(argmax(logits), 1);
  for (let seed = 0; seed < 20; seed++) {
    assertEquals(sampleRow(logits, { ...PLAIN, temperature: 0, seed }, 3), 1);
    assertEquals(sampleCandidates(candidatesOf(logits, 1, 0), { ...PLAIN, topK: 1, seed }, 3), 1);
  }
});

Deno.test("a draw is the largest sum of scaled logit and noise", () => {
  const logits = Float32Array.from({ length: 50 }, (_, id) => Math.sin(id) * 3);
  for (let position = 0; position < 20; position++) {
    const sums = [...logits].map((value, id) => value / 0.8 + gumbel(99, position, id));
    assertEquals(
      sampleRow(logits, { ...PLAIN, temperature: 0.8, seed: 99 }, position),
      sums.indexOf(Math.max(...sums)),
    );
  }
});
