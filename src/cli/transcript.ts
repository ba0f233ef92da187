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

/** Chunks of at most `length` samples, each beginning `overlap` samples before the one before ends; the last may be shorter. */
export function planChunks(samples: number, length: number, overlap: number): Chunk[] {
  const chunks: Chunk[] = [];
  for (let start = 0;; start += length - overlap) {
    const end = Math.min(samples, start + length);
    chunks.push({ start, end });
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
  const a = first.split(/\s+/).filter((word) => word !== "");
  const b = second.split(/\s+/).filter((word) => word !== "");
  const plain = (word: string) => word.toLowerCase().replace(/[^\p{L}\p{N}]/gu, "");
  let best = { words: 0, cutA: 0, cutB: 0 };
  for (let cutA = 0; cutA <= Math.min(MOST_CUT, a.length); cutA++) {
    for (let cutB = 0; cutB <= Math.min(MOST_CUT, b.length); cutB++) {
      const most = Math.min(a.length - cutA, b.length - cutB, MOST_WORDS);
      // One equal word may be chance where words were passed over.
      const least = cutA + cutB === 0 ? 1 : 2;
      for (let words = most; words >= Math.max(least, best.words + 1); words--) {
        const from = a.length - cutA - words;
        let equal = true;
        for (let i = 0; i < words && equal; i++) equal = plain(a[from + i]) === plain(b[cutB + i]);
        if (equal) best = { words, cutA, cutB };
      }
    }
  }
  if (best.words === 0) return [first, second];
  return [a.slice(0, a.length - best.cutA).join(" "), b.slice(best.cutB + best.words).join(" ")];
}

/** All texts in one. */
export function plainText(cues: readonly Cue[]): string {
  return cues.map(({ text }) => text).filter((text) => text !== "").join(" ");
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
