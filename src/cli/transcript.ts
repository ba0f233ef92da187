/** Long recordings in overlapping chunks: where they are cut, how their texts are joined, and subtitles. Pure functions. */

/** A part of a recording, in samples. */
export interface Chunk {
  start: number;
  /** exclusive */ end: number;
}

/** What was said in a part of a recording. */
export interface Cue {
  /** Seconds from the beginning. */
  start: number;
  /** Seconds from the beginning. */
  end: number;
  /** May be empty. */
  text: string;
}

/** Words of two chunks that are compared at their seam. */
const MOST_WORDS = 60;
/** Words at a seam that may have been cut and are not compared. */
const MOST_CUT = 2;

/**
 * Chunks of at most `length` samples, each beginning `overlap` samples before the one before ends. The last may be shorter, but not
 * than `least`: it begins earlier then.
 */
export function planChunks(samples: number, length: number, overlap: number, least = 1): Chunk[] {
  const chunks: Chunk[] = [];
  for (let start = 0;; start += length - overlap) {
    const end = Math.min(samples, start + length);
    chunks.push({ start: Math.max(0, Math.min(start, end - least)), end });
    if (end === samples) return chunks;
  }
}

/**
 * Times of the chunks as cues: they meet in the middle of their overlap. `texts` are what was said in each; what the overlap said
 * twice is left out of the second.
 */
export function cuesOf(chunks: readonly Chunk[], texts: readonly string[], rate: number): Cue[] {
  const cues = chunks.map((chunk, i): Cue => {
    const before = chunks[i - 1], after = chunks[i + 1];
    const start = before ? (chunk.start + before.end) / 2 : chunk.start;
    const end = after ? (after.start + chunk.end) / 2 : chunk.end;
    return { start: start / rate, end: end / rate, text: texts[i].trim() };
  });
  for (let i = 1; i < cues.length; i++) {
    if (chunks[i].start >= chunks[i - 1].end) continue; // nothing was heard twice
    // "[noise]" tells of the whole chunk, not of words in the overlap.
    if (isSound(cues[i - 1].text) || isSound(cues[i].text)) continue;
    [cues[i - 1].text, cues[i].text] = joinSeam(cues[i - 1].text, cues[i].text);
  }
  return cues;
}

function isSound(text: string): boolean {
  return /^[\[(][^\])]*[\])]$/.test(text);
}

/**
 * Two texts whose end and beginning were heard twice, without the repetition: the longest run of words that ends the first and
 * begins the second, where up to two words at each edge may have been cut in half.
 */
export function joinSeam(first: string, second: string): [string, string] {
  const a = wordsOf(first), b = wordsOf(second);
  let best = { words: 0, cutA: 0, cutB: 0 };
  for (let cutA = 0; cutA <= Math.min(MOST_CUT, a.length); cutA++) {
    for (let cutB = 0; cutB <= Math.min(MOST_CUT, b.length); cutB++) {
      const most = Math.min(a.length - cutA, b.length - cutB, MOST_WORDS);
      for (let words = most; words > best.words; words--) {
        const from = a.length - cutA - words;
        // One equal word may be chance where words were passed over, and one equal character always.
        if (words === 1 && (cutA + cutB > 0 || a[from].isCharacter)) break;
        let equal = true;
        for (let i = 0; i < words && equal; i++) equal = a[from + i].plain === b[cutB + i].plain;
        if (equal) best = { words, cutA, cutB };
      }
    }
  }
  if (best.words === 0) return [first, second];
  const next = b[best.cutB + best.words];
  return [
    best.cutA === 0 ? first : first.slice(0, a[a.length - best.cutA - 1].end),
    next === undefined ? "" : second.slice(next.start),
  ];
}

interface Word {
  /** letters and digits in lower case */ plain: string;
  /** of a script without spaces between words */ isCharacter: boolean;
  start: number;
  end: number;
}

const UNSPACED =
  "\\p{sc=Han}\\p{sc=Hiragana}\\p{sc=Katakana}\\p{sc=Thai}\\p{sc=Lao}\\p{sc=Khmer}\\p{sc=Myanmar}ー";
const WORD = new RegExp(`([${UNSPACED}])|[^\\s${UNSPACED}]+`, "gu");
const UNSPACED_END = new RegExp(`[${UNSPACED}。、！？」』】]$`, "u");
const UNSPACED_START = new RegExp(`^[${UNSPACED}「『【]`, "u");

/** Words that have letters or digits; where a script writes without spaces, its characters. */
function wordsOf(text: string): Word[] {
  const words: Word[] = [];
  for (const match of text.matchAll(WORD)) {
    const plain = match[0].toLowerCase().replace(/[^\p{L}\p{M}\p{N}]/gu, "");
    if (plain === "") continue;
    const [start, end] = [match.index, match.index + match[0].length];
    words.push({ plain, isCharacter: match[1] !== undefined, start, end });
  }
  return words;
}

/** All texts in one, with spaces between them where their scripts have such. */
export function plainText(cues: readonly Cue[]): string {
  let all = "";
  for (const { text } of cues) {
    if (text === "") continue;
    const joined = all === "" || UNSPACED_END.test(all) && UNSPACED_START.test(text);
    all += `${joined ? "" : " "}${text}`;
  }
  return all;
}

/** SubRip subtitles. */
export function srt(cues: readonly Cue[]): string {
  return spoken(cues).map(({ start, end, text }, i) =>
    `${i + 1}\n${time(start, ",")} --> ${time(end, ",")}\n${lines(text)}\n`
  ).join("\n");
}

/** WebVTT subtitles. */
export function vtt(cues: readonly Cue[]): string {
  const escape = (text: string) =>
    text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  return "WEBVTT\n" +
    spoken(cues).map(({ start, end, text }) =>
      `\n${time(start, ".")} --> ${time(end, ".")}\n${escape(lines(text))}\n`
    ).join("");
}

function spoken(cues: readonly Cue[]): Cue[] {
  return cues.filter(({ text }) => text !== "");
}

/** An empty line would end a cue. */
function lines(text: string): string {
  return text.replace(/\n\s*\n/g, "\n");
}

/** hh:mm:ss and milliseconds. */
function time(seconds: number, point: string): string {
  const milliseconds = Math.round(seconds * 1000);
  const part = (divisor: number, modulus: number, width = 2) =>
    String(Math.floor(milliseconds / divisor) % modulus).padStart(width, "0");
  return `${part(3_600_000, Infinity)}:${part(60_000, 60)}:${part(1000, 60)}${point}${part(1, 1000, 3)}`;
}
