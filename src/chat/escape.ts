/**
 * What keeps caller text from becoming a control token.
 *
 * Two marks, both private-use code points, travel through the template:
 * - every `<` in caller-supplied text becomes CALLER_LESS, so that nothing a caller writes spells a token;
 * - every control token that stands whole in the template's own text is fenced by OPEN and CLOSE, so that only the
 *   template's own tokens count, and a piece of caller text cannot complete one ('<' of the template + 'bos>').
 * Private-use marks that are already in a text are escaped with QUOTE. After rendering, fenced tokens become
 * controls and everything else is mapped back to what it was.
 */

import type { Segment } from "../tokenizer/tokenizer.ts";
import type { Warning } from "../warning.ts";

const QUOTE = "\uF8E0";
const CALLER_LESS = "\uF8E1";
const OPEN = "\uF8E2";
const CLOSE = "\uF8E3";

/** Caller text as it enters the template. */
export function escapeCallerText(text: string): string {
  return text.replace(/[\uF8E0-\uF8E3]/g, (mark) => QUOTE + mark).replaceAll("<", CALLER_LESS);
}

/** The inverse of {@link escapeCallerText}; stray fences disappear. */
export function restoreText(text: string): string {
  return text.replace(
    /\uF8E0([\uF8E0-\uF8E3])|[\uF8E1-\uF8E3]/g,
    (mark, quoted: string | undefined) => quoted ?? (mark === CALLER_LESS ? "<" : ""),
  );
}

/** Whether a character of escaped text stands for something else or for nothing; a quoted one is two characters. */
export function isMark(character: string): boolean {
  return character >= CALLER_LESS && character <= CLOSE && character.length === 1;
}

/** A function that fences the control tokens of template text; the longest token wins. */
export function templateTextFence(controlTokens: ReadonlyMap<string, number>): (text: string) => string {
  const tokens = controlTokenPattern(controlTokens);
  return (text) => {
    const quoted = text.replace(/[\uF8E0-\uF8E3]/g, (mark) => QUOTE + mark);
    return tokens === null ? quoted : quoted.replace(tokens, (token) => OPEN + token + CLOSE);
  };
}

/** Splits rendered text at the fenced control tokens; each text between them is one segment. */
export function splitRendered(
  rendered: string,
  controlTokens: ReadonlyMap<string, number>,
): { text: string; segments: Segment[]; warnings: Warning[] } {
  const segments: Segment[] = [];
  const warnings: Warning[] = [];
  const tokens = controlTokenPattern(controlTokens);
  let text = "";
  const addText = (marked: string) => {
    const plain = restoreText(marked);
    if (plain === "") return;
    text += plain;
    segments.push({ text: plain });
    const composed = tokens === null ? null : marked.replace(/[\uF8E2\uF8E3]/g, "").match(tokens);
    if (composed !== null && composed[0].includes("<")) {
      warnings.push({
        code: "composed_control_token",
        message:
          `The chat template put "${composed[0]}" together from pieces; it was kept as text, not as the ` +
          `control token. Write the token whole in the template.`,
      });
    }
  };
  let start = 0; // first character that is not yet in a segment
  for (const match of rendered.matchAll(/\uF8E0[\uF8E0-\uF8E3]|\uF8E2([^\uF8E0-\uF8E3]*)\uF8E3/g)) {
    const id = match[1] === undefined ? undefined : controlTokens.get(match[1]);
    if (id === undefined) continue;
    addText(rendered.slice(start, match.index));
    text += match[1];
    segments.push({ control: id });
    start = match.index + match[0].length;
  }
  addText(rendered.slice(start));
  return { text, segments, warnings };
}

/** One expression for all control tokens, or null if there are none. Longer tokens come first. */
function controlTokenPattern(controlTokens: ReadonlyMap<string, number>): RegExp | null {
  const names = [...controlTokens.keys()].filter((name) => name !== "").sort((a, b) => b.length - a.length);
  if (names.length === 0) return null;
  return new RegExp(names.map((name) => name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|"), "g");
}
