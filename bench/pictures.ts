/**
 * Time to read pictures, and how long at a stretch timers do not get their turns meanwhile.
 *
 *     deno run -A bench/pictures.ts FILE… [--repetitions 3]
 */
import { parseFlags } from "../src/cli/args.ts";
import { readPicture } from "../src/media/picture.ts";

const { values, words } = parseFlags(Deno.args, { repetitions: { type: "number", help: "how often" } });
for (const file of words) {
  for (let i = 0; i < (values.repetitions ?? 3); i++) {
    const began = performance.now();
    let longest = 0, last = began;
    const timer = setInterval(() => {
      longest = Math.max(longest, performance.now() - last);
      last = performance.now();
    }, 1);
    const { width, height } = await readPicture(file);
    const took = performance.now() - began;
    await new Promise((resolve) => setTimeout(resolve, 5)); // the timer's last turn
    clearInterval(timer);
    console.log(
      `${file}: ${width} × ${height}, ${took.toFixed(0)} ms, at a stretch ${longest.toFixed(0)} ms`,
    );
  }
}
