/**
 * Makes the pictures, sounds and the video of this folder; they are what it writes, byte for byte.
 *
 *     deno run -A examples/media/make.ts [FOLDER]
 */
import { encodePng } from "../../src/media/png.ts";
import { draw, type Drawing, random, type Scene } from "./draw.ts";
import { gif, wav } from "./files.ts";
import { RATE, synthesise, type Tone } from "./tones.ts";

/** Pictures by file name. */
export const SCENES: Record<string, Scene> = {
  "star.png": { width: 280, height: 220, groups: [{ count: 1, colour: "orange", shape: "star" }] },
  "circles.png": {
    width: 320,
    height: 320,
    groups: [{ count: 3, colour: "blue", shape: "circle" }, { count: 1, colour: "green", shape: "square" }],
    relation: "above",
  },
};

/** Sounds by file name. */
export const SOUNDS: Record<string, Tone> = { "rising.wav": "a rising tone", "beeps.wav": "three beeps" };

/** The scenes of `scenes.gif`, two seconds each. */
export const FRAMES: readonly Scene[] = [
  { width: 240, height: 240, groups: [{ count: 1, colour: "red", shape: "triangle" }] },
  { width: 240, height: 240, groups: [{ count: 2, colour: "purple", shape: "diamond" }] },
];

/** Writes all files into a folder. */
export async function make(folder: string): Promise<void> {
  let seed = 1;
  for (const [name, scene] of Object.entries(SCENES)) {
    const { data, width, height } = draw(scene, random(seed++));
    await Deno.writeFile(`${folder}/${name}`, await encodePng({ pixels: data, width, height }));
  }
  for (const [name, tone] of Object.entries(SOUNDS)) {
    await Deno.writeFile(`${folder}/${name}`, wav(synthesise(tone, random(seed++)), RATE));
  }
  const frames: Drawing[] = FRAMES.map((scene) => draw(scene, random(seed++)));
  await Deno.writeFile(`${folder}/scenes.gif`, gif(frames, 2));
}

if (import.meta.main) await make(Deno.args[0] ?? import.meta.dirname!);
