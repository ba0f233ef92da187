import { assert, assertEquals, assertThrows } from "@std/assert";
import { TokenizerError } from "../../src/errors.ts";
import { Bpe } from "../../src/tokenizer/bpe.ts";
import { IdSet } from "../../src/tokenizer/id_set.ts";
import { PairSet, PairTable } from "../../src/tokenizer/pairs.ts";
import { TokenIndex } from "../../src/tokenizer/token_index.ts";
import { Tokenizer } from "../../src/tokenizer/tokenizer.ts";
import type { Vocabulary } from "../../src/tokenizer/vocabulary.ts";
import { randomIntegers } from "./random.ts";

const BYTES = Array.from(
  { length: 256 },
  (_, byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`,
);

/** A vocabulary of `start` tokens and what `merges` make of them. */
function vocabularyOf(
  start: string[],
  merges: [string, string][],
  more: Partial<Vocabulary> = {},
): Vocabulary {
  const tokens = [...new Set([...start, ...merges.map(([left, right]) => left + right)])];
  return {
    tokens,
    merges,
    added: [],
    fuseUnknown: false,
    byteFallback: BYTES.every((byte) => tokens.includes(byte)),
    normalize: [],
    denormalize: [],
    stops: [],
    ...more,
  };
}

/** Random merges over an alphabet, each of tokens that exist by then. */
function randomMerges(random: (below: number) => number, start: string[], count: number): [string, string][] {
  const tokens = [...start];
  const merges: [string, string][] = [];
  const taken = new Set<string>();
  while (merges.length < count) {
    const pair: [string, string] = [tokens[random(tokens.length)], tokens[random(tokens.length)]];
    if (taken.has(pair.join(" ")) || pair.join("").length > 40) continue;
    taken.add(pair.join(" "));
    merges.push(pair);
    if (!tokens.includes(pair.join(""))) tokens.push(pair.join(""));
  }
  // Ranks need not follow the order in which tokens can arise.
  for (let i = merges.length - 1; i > 0; i--) {
    const j = random(i + 1);
    [merges[i], merges[j]] = [merges[j], merges[i]];
  }
  return merges;
}

/** The definition: over the whole text, merge the best-ranked pair, leftmost first, until none is left. */
function oracle(symbols: string[], merges: [string, string][]): string[] {
  const rankOf = new Map(merges.map((pair, rank) => [pair.join(" "), rank]));
  for (;;) {
    let best = -1, bestRank = Infinity;
    for (let i = 0; i + 1 < symbols.length; i++) {
      const rank = rankOf.get(`${symbols[i]} ${symbols[i + 1]}`);
      if (rank !== undefined && rank < bestRank) bestRank = rank, best = i;
    }
    if (best < 0) return symbols;
    symbols = symbols.toSpliced(best, 2, symbols[best] + symbols[best + 1]);
  }
}

Deno.test("random vocabularies encode short and long texts as the plain definition does", () => {
  const random = randomIntegers(11);
  for (let round = 0; round < 60; round++) {
    const alphabet = [..."abcdé𠮷"].slice(0, 2 + random(5));
    const merges = randomMerges(random, alphabet, 1 + random(40));
    const tokenizer = new Tokenizer(vocabularyOf(alphabet, merges));
    for (const length of [1, 2, 5, 20, 24, 25, 40, 200]) {
      const symbols = Array.from({ length }, () => alphabet[random(alphabet.length)]);
      const ids = tokenizer.encode(symbols.join(""));
      assertEquals(ids.map((id) => tokenizer.token(id)), oracle(symbols, merges));
    }
  }
});

Deno.test("random pieces with scores encode as the plain definition does, also where a text has two ids", () => {
  const random = randomIntegers(12);
  for (let round = 0; round < 240; round++) {
    const alphabet = [..."abcdé𠮷"].slice(0, 2 + random(5));
    const { tokens, merges } = vocabularyOf(alphabet, randomMerges(random, alphabet, 1 + random(40)));
    const texts = [...tokens as string[]];
    // Some tokens are no pieces, one is a control token. Scores are in no order nor all different, or each below the one before, or
    // two of them equal.
    const scores = texts.map((_, id) => [-random(texts.length), -id, -(id >> 1)][round % 3]);
    const isPiece = texts.map((_, id) => id < alphabet.length || random(6) > 0);
    const control = alphabet.length + random(texts.length - alphabet.length);
    const hasTwice = round % 4 === 3;
    if (hasTwice) {
      texts.push(texts[control]);
      scores.push(-texts.length);
      isPiece.push(false);
    }
    const scoreOf = new Map(
      texts.flatMap((text, id) => isPiece[id] && id !== control ? [[text, scores[id]] as const] : []),
    );
    const definition = (symbols: string[]): string[] => {
      for (;;) {
        let best = -1, bestScore = -Infinity;
        for (let i = 0; i + 1 < symbols.length; i++) {
          const score = scoreOf.get(symbols[i] + symbols[i + 1]);
          if (score !== undefined && score > bestScore) bestScore = score, best = i;
        }
        if (best < 0) return symbols;
        symbols = symbols.toSpliced(best, 2, symbols[best] + symbols[best + 1]);
      }
    };
    const tokenizer = new Tokenizer({
      ...vocabularyOf(alphabet, merges as [string, string][]),
      tokens: texts,
      merges: [],
      scores,
      pieces: (id) => isPiece[id],
      added: [{ id: control, text: texts[control], control: true, normalized: false }],
    });
    for (const length of [1, 2, 5, 20, 25, 40, 200]) {
      const symbols = Array.from({ length }, () => alphabet[random(alphabet.length)]);
      const ids = tokenizer.encode(symbols.join(""));
      assertEquals(ids.map((id) => tokenizer.token(id)), definition(symbols), `round ${round}`);
    }
  }
});

Deno.test("merges of byte tokens apply to characters that only bytes can spell", () => {
  const random = randomIntegers(12);
  const start = [...BYTES, "a", "b"];
  for (let round = 0; round < 20; round++) {
    const some = ["a", "b", "<0xC3>", "<0xA9>", "<0xA8>"]; // é and è in bytes
    const merges = randomMerges(random, some, 12);
    const tokenizer = new Tokenizer(vocabularyOf(start, merges));
    for (const length of [3, 30]) {
      const text = Array.from({ length }, () => "abéè"[random(4)]).join("");
      const symbols = [...text].flatMap((character) =>
        character === "é" ? ["<0xC3>", "<0xA9>"] : character === "è" ? ["<0xC3>", "<0xA8>"] : [character]
      );
      assertEquals(tokenizer.encode(text).map((id) => tokenizer.token(id)), oracle(symbols, merges));
    }
  }
});

Deno.test("work grows in proportion to the text, with and without places to cut it", () => {
  const merges: [string, string][] = [["a", "a"], ["aa", "aa"], ["aaaa", "aaaa"], ["a", "b"], [" ", "a"]];
  const vocabulary = vocabularyOf(["a", "b", " "], merges);
  for (const unit of ["a", "a b ", "ab"]) {
    const lookups = (length: number) => {
      const bpe = new Bpe(vocabulary, new TokenIndex(vocabulary.tokens));
      bpe.encode(unit.repeat(length / unit.length), []);
      return bpe.pairLookups;
    };
    const small = lookups(1 << 17), large = lookups(1 << 20);
    assert(
      large <= 8.01 * small,
      `${JSON.stringify(unit)}: ${small} lookups for 128 KiB, ${large} for 1 MiB`,
    );
    assert(large <= 5 * (1 << 20), `${JSON.stringify(unit)}: ${large} lookups for 1 MiB`);
  }
});

Deno.test("no merge and no single character makes a control token", () => {
  const merges: [string, string][] = [["<", "t"], ["<t", ">"], ["t", ">"], ["<", "t>"], ["!", "!"]];
  const vocabulary = vocabularyOf([...BYTES, "<", "t", ">", "!"], merges);
  const control = ["<t>", "!"].map((text) => ({
    id: [...vocabulary.tokens].indexOf(text),
    text,
    control: true,
    normalized: false,
  }));
  const tokenizer = new Tokenizer({ ...vocabulary, added: control });
  for (const text of ["<t>", "!", "!!", "<t>!<t>", "<<t>>"]) {
    const ids = tokenizer.encode(text);
    assertEquals(ids.filter((id) => tokenizer.isControl(id)), [], text);
    assertEquals(tokenizer.decode(ids), text);
  }
  assertEquals(tokenizer.encode("<t>!", { special: true }), control.map((token) => token.id));
});

Deno.test("only ids of control tokens are control tokens: no fractions, negative numbers or what lies beyond", () => {
  const tokens = [..."abcdefgh", "<x>"];
  const added = [{ id: 8, text: "<x>", control: true, normalized: false }];
  const tokenizer = new Tokenizer({ ...vocabularyOf([..."abcdefgh"], []), tokens, added });
  const ids = [0, 7, 8, 8.5, 9, 16, -1, -8, 2 ** 32 + 8, NaN, Infinity];
  assertEquals(ids.filter((id) => tokenizer.isControl(id)), [8]);
});

Deno.test("unknown characters become the unknown token, fused when the file says so", () => {
  const start = ["<unk>", "a"];
  const separate = new Tokenizer(vocabularyOf(start, [["a", "a"]], { unknown: 0 }));
  assertEquals(separate.encode("xya𠮷aaz"), [0, 0, 1, 0, 2, 0]);
  const fused = new Tokenizer(vocabularyOf(start, [["a", "a"]], { unknown: 0, fuseUnknown: true }));
  assertEquals(fused.encode("xya𠮷aaz"), [0, 1, 0, 2, 0]);
});

Deno.test("a character that nothing can spell is a typed error that names it", () => {
  const tokenizer = new Tokenizer(vocabularyOf(["a"], []));
  assertThrows(() => tokenizer.encode("aé"), TokenizerError, "U+00E9");
  assertEquals(tokenizer.encode("aa"), [0, 0]);
});

Deno.test("a pair that is listed twice merges at its last rank", () => {
  const merges: [string, string][] = [["a", "b"], ["b", "c"], ["a", "b"]];
  const tokenizer = new Tokenizer(vocabularyOf([..."abc"], merges));
  assertEquals(tokenizer.encode("abc").map((id) => tokenizer.token(id)), ["a", "bc"]);
});

Deno.test("a pair table returns what was set last, through growth and collisions", () => {
  const random = randomIntegers(13);
  const table = new PairTable(1), expected = new Map<string, number>();
  for (let i = 0; i < 5000; i++) {
    const left = random(60), right = random(60);
    table.set(left, right, i, -i);
    expected.set(`${left} ${right}`, i);
  }
  for (let left = 0; left < 61; left++) {
    for (let right = 0; right < 61; right++) {
      const slot = table.find(left, right), value = expected.get(`${left} ${right}`);
      assertEquals(slot < 0 ? undefined : table.rank(slot), value);
      if (value !== undefined) assertEquals(table.result(slot), -value);
    }
  }
});

Deno.test("a set of pairs has what was added, through growth and collisions", () => {
  const random = randomIntegers(15);
  const set = new PairSet(1), expected = new Set<string>();
  for (let i = 0; i < 5000; i++) {
    const left = random(200), right = random(200);
    set.add(left, right);
    expected.add(`${left} ${right}`);
  }
  for (let left = 0; left < 200; left++) {
    for (let right = 0; right < 200; right++) {
      assertEquals(set.has(left, right), expected.has(`${left} ${right}`), `${left} ${right}`);
    }
  }
});

Deno.test("a set of ids has what was added and nothing else, up to its limit", () => {
  const random = randomIntegers(16);
  for (const limit of [1, 7, 8, 9, 1000]) {
    const set = new IdSet(limit), expected = new Set<number>();
    for (let i = 0; i < limit; i += 3) expected.add(random(limit));
    expected.add(limit - 1).forEach((id) => set.add(id));
    for (let id = 0; id < limit; id++) assertEquals(set.has(id), expected.has(id), `${id} of ${limit}`);
  }
});

Deno.test("a token index finds every text, whole or in two parts, and nothing else", () => {
  const random = randomIntegers(14);
  const pieces = Array.from(
    { length: 300 },
    () => Array.from({ length: 1 + random(4) }, () => "abz\u0000é"[random(5)]).join(""),
  );
  const tokens = [...new Set([...pieces, ...pieces.map((piece, i) => piece + pieces[(i * 7) % 300])])];
  const index = new TokenIndex([...tokens, tokens[0]]);
  tokens.forEach((text, id) => assertEquals(index.find(text), id));
  for (let round = 0; round < 3000; round++) {
    const left = random(tokens.length), right = random(tokens.length);
    assertEquals(index.findJoined(left, right), tokens.indexOf(tokens[left] + tokens[right]));
  }
  assertEquals(index.find("absent"), -1);
  assertEquals(index.find(""), -1);
});
