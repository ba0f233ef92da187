/** A small picture in the terminal, where the terminal can show one: kitty's protocol, iTerm2's, or sixel. */
import { optionalEnv } from "../../ffi/permissions.ts";
import { encodePng } from "../media/png.ts";
import { type Picture, resizeBicubic } from "../media/resize.ts";

/** How a terminal takes pictures. */
export type PreviewProtocol = "kitty" | "iterm2" | "sixel";

const MOST_WIDTH = 320;
const MOST_HEIGHT = 240;
/** Variables that terminals set about themselves. */
const VARIABLES = ["TERM", "TERM_PROGRAM", "LC_TERMINAL", "KITTY_WINDOW_ID", "TMUX"] as const;

/** What the environment says of the terminal; undefined where it shows no pictures or is not known to. */
export function protocolOf(
  env: Partial<Record<typeof VARIABLES[number], string>>,
): PreviewProtocol | undefined {
  const { TERM = "", TERM_PROGRAM: program = "", LC_TERMINAL, KITTY_WINDOW_ID, TMUX } = env;
  if (TMUX !== undefined || /^(screen|tmux|dumb)/.test(TERM)) return undefined; // they swallow the sequences
  if (KITTY_WINDOW_ID !== undefined || TERM === "xterm-kitty" || TERM === "xterm-ghostty") return "kitty";
  if (program === "ghostty") return "kitty";
  if (program === "iTerm.app" || program === "WezTerm" || LC_TERMINAL === "iTerm2") return "iterm2";
  if (/sixel|^foot|^mlterm|^yaft|^contour/.test(TERM) || program === "contour") return "sixel";
  return undefined;
}

/** The sequence that shows a picture, ending its line; empty where standard output is no terminal that can. */
export async function preview(picture: Picture): Promise<string> {
  if (!Deno.stdout.isTerminal()) return "";
  const env: Partial<Record<typeof VARIABLES[number], string>> = {};
  for (const name of VARIABLES) env[name] = await optionalEnv(name);
  const protocol = protocolOf(env);
  return protocol === undefined ? "" : await drawing(picture, protocol);
}

/** The sequence of one protocol. */
export async function drawing(picture: Picture, protocol: PreviewProtocol): Promise<string> {
  const scale = Math.min(1, MOST_WIDTH / picture.width, MOST_HEIGHT / picture.height);
  const side = (pixels: number) => Math.max(1, Math.round(pixels * scale));
  const small = scale === 1
    ? picture
    : await resizeBicubic(picture, side(picture.width), side(picture.height));
  switch (protocol) {
    case "kitty":
      return kitty((await encodePng(small)).toBase64());
    case "iterm2": {
      const png = await encodePng(small);
      return `\x1b]1337;File=inline=1;size=${png.length};preserveAspectRatio=1:${png.toBase64()}\x07\n`;
    }
    case "sixel":
      return sixel(small);
  }
}

/** PNG in pieces of at most 4096 characters. */
function kitty(base64: string): string {
  const pieces = base64.match(/.{1,4096}/g) ?? [];
  return pieces.map((piece, i) => {
    const head = i === 0 ? "a=T,f=100,q=2," : "";
    return `\x1b_G${head}m=${i === pieces.length - 1 ? 0 : 1};${piece}\x1b\\`;
  }).join("") + "\n";
}

/** Six levels of each primary colour, six rows a band, runs counted. */
function sixel({ pixels, width, height }: Picture): string {
  let text = `\x1bPq"1;1;${width};${height}`;
  for (let c = 0; c < 216; c++) {
    const percent = (level: number) => level * 20;
    text += `#${c};2;${percent(Math.floor(c / 36))};${percent(Math.floor(c / 6) % 6)};${percent(c % 6)}`;
  }
  const level = (value: number) => Math.round(value / 51);
  for (let top = 0; top < height; top += 6) {
    const bands = new Map<number, Uint8Array>(); // colour → six bits a column
    for (let y = top; y < Math.min(height, top + 6); y++) {
      for (let x = 0; x < width; x++) {
        const at = (y * width + x) * 3;
        const colour = level(pixels[at]) * 36 + level(pixels[at + 1]) * 6 + level(pixels[at + 2]);
        let band = bands.get(colour);
        if (band === undefined) bands.set(colour, band = new Uint8Array(width));
        band[x] |= 1 << (y - top);
      }
    }
    text += [...bands].map(([colour, band]) => `#${colour}${runs(band)}`).join("$") + "-";
  }
  return text + "\x1b\\\n";
}

function runs(band: Uint8Array): string {
  let text = "";
  for (let x = 0; x < band.length;) {
    let end = x + 1;
    while (end < band.length && band[end] === band[x]) end++;
    const character = String.fromCharCode(63 + band[x]);
    text += end - x > 3 ? `!${end - x}${character}` : character.repeat(end - x);
    x = end;
  }
  return text;
}
