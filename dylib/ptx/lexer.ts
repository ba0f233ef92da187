/** Tokens of preprocessed Metal source, kept together with the text between them so that output keeps its line numbers. */

/** One token. `out` replaces the text on output, `after` follows it. */
export interface Token {
  text: string;
  file: string;
  line: number;
  out?: string;
  after?: string;
}

/** A token, or the white space, comment or directive between two tokens. */
export type Piece = Token | string;

/** Lexed source: every piece in order, and the tokens alone. */
export interface Lexed {
  pieces: Piece[];
  tokens: Token[];
}

/** A rule of the language that the source breaks. */
export interface Violation {
  file: string;
  line: number;
  rule: string;
  message: string;
}

/** The source cannot be read as Metal at all. */
export class MslSyntaxError extends Error {
  constructor(public readonly violation: Violation) {
    super(`${violation.file}:${violation.line}: ${violation.message}`);
  }
}

const PIECE = new RegExp(
  [
    "\\s+",
    "//[^\\n]*",
    "/\\*[\\s\\S]*?\\*/",
    "#[^\\n]*",
    '"(?:\\\\.|[^"\\\\])*"',
    "'(?:\\\\.|[^'\\\\])*'",
    "[A-Za-z_]\\w*",
    "\\.?\\d(?:[eEpP][+-]|[\\w.])*",
    "\\[\\[|\\]\\]|::|->|\\.\\.\\.|<<=|>>=|<<|[-+*/%&|^=!<>]=|&&|\\|\\||\\+\\+|--",
    "[\\s\\S]",
  ].join("|"),
  "y",
);

/** True for identifiers and keywords. */
export function isWord(token: Token | undefined): boolean {
  return token !== undefined && /^[A-Za-z_]/.test(token.text);
}

/** Splits preprocessed text (with `# line "file"` markers) into pieces. */
export function lex(text: string, file: string): Lexed {
  const pieces: Piece[] = [];
  let line = 1;
  PIECE.lastIndex = 0;
  for (let m = PIECE.exec(text); m !== null; m = PIECE.exec(text)) {
    const s = m[0];
    if (/^(\s|\/\/|\/\*)/.test(s)) {
      pieces.push(s);
      line += newlines(s);
    } else if (s[0] === "#") {
      const marker = /^#\s*(?:line\s+)?(\d+)\s+"([^"]*)"/.exec(s);
      if (marker) {
        line = Number(marker[1]) - 1;
        file = marker[2];
      }
      pieces.push(s);
    } else {
      pieces.push({ text: s, file, line });
    }
    if (PIECE.lastIndex >= text.length) break;
  }
  return foldBrackets(pieces);
}

function newlines(s: string): number {
  let n = 0;
  for (const c of s) if (c === "\n") n++;
  return n;
}

/** `x[i[j]]` ends in the same characters as an attribute: only pairs that nest as attributes stay `[[` and `]]`. */
function foldBrackets(input: Piece[]): Lexed {
  const open: string[] = [];
  const pieces: Piece[] = [];
  for (const p of input) {
    if (typeof p === "string") {
      pieces.push(p);
      continue;
    }
    if (p.text === "[[" || p.text === "[") open.push(p.text);
    if (p.text === "]") open.pop();
    if (p.text === "]]") {
      if (open.pop() !== "[[") {
        open.pop();
        pieces.push({ ...p, text: "]" }, { ...p, text: "]" });
        continue;
      }
    }
    pieces.push(p);
  }
  return { pieces, tokens: pieces.filter((p): p is Token => typeof p !== "string") };
}

/** The index of the token that closes the one at `start`. */
export function matching(tokens: Token[], start: number, open: string, close: string): number {
  let depth = 0;
  for (let i = start; i < tokens.length; i++) {
    if (tokens[i].text === open) depth++;
    if (tokens[i].text === close && --depth === 0) return i;
  }
  throw new MslSyntaxError({ ...place(tokens[start]), rule: "syntax", message: `'${open}' is never closed` });
}

/** The index of the `>` that closes the `<` at `start`. */
export function matchingAngle(tokens: Token[], start: number): number {
  let depth = 0;
  for (let i = start; i < tokens.length; i++) {
    const s = tokens[i].text;
    if (s === "(") i = matching(tokens, i, "(", ")");
    else if (s === "<") depth++;
    else if (s === ">" && --depth === 0) return i;
  }
  throw new MslSyntaxError({ ...place(tokens[start]), rule: "syntax", message: "'<' is never closed" });
}

/** Splits a token list at its top-level commas. */
export function splitCommas(tokens: Token[]): Token[][] {
  const parts: Token[][] = [];
  let part: Token[] = [];
  let depth = 0, angle = 0;
  for (const t of tokens) {
    if (["(", "[", "{", "[["].includes(t.text)) depth++;
    if ([")", "]", "}", "]]"].includes(t.text)) depth--;
    if (t.text === "<") angle++;
    if (t.text === ">" && angle > 0) angle--;
    if (t.text === "," && depth === 0 && angle === 0) {
      parts.push(part);
      part = [];
    } else part.push(t);
  }
  if (part.length > 0) parts.push(part);
  return parts;
}

/** Where a token stands. */
export function place(token: Token): { file: string; line: number } {
  return { file: token.file, line: token.line };
}

/** The texts of a token list, joined by blanks. */
export function textOf(tokens: Token[]): string {
  return tokens.map((t) => t.text).join(" ");
}
