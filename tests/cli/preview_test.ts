import { assert, assertEquals } from "@std/assert";
import { drawing, protocolOf } from "../../src/cli/preview.ts";
import { readPicture } from "../../src/media/picture.ts";

/** Red on the left, blue on the right. */
function picture(width: number, height: number) {
  const pixels = new Uint8Array(width * height * 3);
  for (let i = 0; i < width * height; i++) {
    pixels.set(i % width < width / 2 ? [255, 0, 0] : [0, 0, 255], i * 3);
  }
  return { pixels, width, height };
}

Deno.test("terminals are known by what they say of themselves; others get no picture", () => {
  assertEquals(protocolOf({ TERM: "xterm-kitty", KITTY_WINDOW_ID: "1" }), "kitty");
  assertEquals(protocolOf({ TERM: "xterm-ghostty" }), "kitty");
  assertEquals(protocolOf({ TERM: "xterm-256color", TERM_PROGRAM: "iTerm.app" }), "iterm2");
  assertEquals(protocolOf({ TERM: "xterm-256color", TERM_PROGRAM: "WezTerm" }), "iterm2");
  assertEquals(protocolOf({ TERM: "foot" }), "sixel");
  assertEquals(protocolOf({ TERM: "mlterm" }), "sixel");
  assertEquals(protocolOf({ TERM: "xterm-256color" }), undefined);
  assertEquals(protocolOf({ TERM: "xterm-kitty", TMUX: "/tmp/tmux" }), undefined);
  assertEquals(protocolOf({ TERM: "screen", TERM_PROGRAM: "iTerm.app" }), undefined);
  assertEquals(protocolOf({}), undefined);
});

Deno.test("the kitty and iTerm2 sequences hold a PNG of at most 320 × 240 pixels, in pieces where kitty wants them", async () => {
  const noise = picture(1000, 500);
  for (let i = 0; i < noise.pixels.length; i++) noise.pixels[i] = Math.imul(i, 2654435761) >>> 24;
  const kitty = await drawing(noise, "kitty");
  // deno-lint-ignore no-control-regex
  const pieces = [...kitty.matchAll(/\x1b_G([^;]*);([^\x1b]*)\x1b\\/g)];
  assert(pieces.length > 1);
  assertEquals(pieces[0][1], "a=T,f=100,q=2,m=1");
  assertEquals(pieces.slice(1).map(([, keys]) => keys), [...Array(pieces.length - 2).fill("m=1"), "m=0"]);
  assert(pieces.every(([, , data]) => data.length <= 4096));
  // deno-lint-ignore no-control-regex
  const iterm = /^\x1b\]1337;File=inline=1;size=(\d+);preserveAspectRatio=1:([^\x07]*)\x07\n$/.exec(
    await drawing(noise, "iterm2"),
  )!;
  for (const base64 of [pieces.map(([, , data]) => data).join(""), iterm[2]]) {
    const png = await readPicture(Uint8Array.fromBase64(base64));
    assertEquals([png.width, png.height], [320, 160]);
  }
  assertEquals(Number(iterm[1]), Uint8Array.fromBase64(iterm[2]).length);
});

Deno.test("a sixel sequence paints the picture when it is read back", async () => {
  const source = picture(10, 8);
  const text = await drawing(source, "sixel");
  // deno-lint-ignore no-control-regex
  const [, body] = /^\x1bPq"1;1;10;8((?:#\d+;2;\d+;\d+;\d+)+#.*)\x1b\\\n$/.exec(text)!;
  const colours = new Map<number, number[]>(), seen = new Uint8Array(10 * 8 * 3);
  let colour = 0, x = 0, top = 0;
  for (
    const [, definition, chosen, count, run, sign] of body.matchAll(
      /#(\d+;2;\d+;\d+;\d+)|#(\d+)|!(\d+)([?-~])|([?-~$-])/g,
    )
  ) {
    if (definition) {
      const [id, , ...percents] = definition.split(";").map(Number);
      colours.set(id, percents.map((p) => Math.round(p * 2.55)));
    } else if (chosen) colour = Number(chosen);
    else if (sign === "$") x = 0;
    else if (sign === "-") [x, top] = [0, top + 6];
    else {
      const bits = (run ?? sign).charCodeAt(0) - 63;
      for (let i = 0; i < Number(count ?? 1); i++, x++) {
        for (let row = 0; row < 6; row++) {
          if (bits >> row & 1) seen.set(colours.get(colour)!, ((top + row) * 10 + x) * 3);
        }
      }
    }
  }
  assertEquals(seen, source.pixels);
});

Deno.test("nothing is shown where standard output is no terminal", async () => {
  const code = `import { preview } from "${new URL("../../src/cli/preview.ts", import.meta.url)}";` +
    `console.log(JSON.stringify(await preview({ pixels: new Uint8Array(3), width: 1, height: 1 })));`;
  const { stdout } = await new Deno.Command(Deno.execPath(), {
    args: ["eval", "--no-check", code],
    env: { TERM: "xterm-kitty", KITTY_WINDOW_ID: "1" },
  }).output();
  assertEquals(new TextDecoder().decode(stdout), '""\n');
});
