/** Draws pictures of coloured shapes as the shipped model knows them: on a plain ground, with what it should say of them. */

/** A seeded generator of numbers in [0, 1). */
export type Random = () => number;

/** The same numbers for the same seed. */
export function random(seed: number): Random {
  let state = seed >>> 0;
  return () => {
    state = state + 0x9e3779b9 >>> 0;
    let t = Math.imul(state ^ state >>> 16, 0x21f0aaad);
    t = Math.imul(t ^ t >>> 15, 0x735a2d97);
    return ((t ^ t >>> 15) >>> 0) / 2 ** 32;
  };
}

/** One of a list. */
export function pick<T>(next: Random, list: readonly T[]): T {
  return list[Math.floor(next() * list.length)];
}

/** A number from `least` to `most`. */
export function between(next: Random, least: number, most: number): number {
  return least + (most - least) * next();
}

type Colour = readonly [number, number, number];

/** Colours by the names that the model gives them. */
export const COLOURS: Record<string, Colour> = {
  red: [214, 40, 40],
  green: [40, 160, 70],
  blue: [40, 90, 215],
  yellow: [245, 215, 40],
  orange: [245, 140, 30],
  purple: [130, 50, 165],
  pink: [245, 150, 190],
  brown: [125, 78, 40],
  black: [20, 20, 20],
  grey: [135, 135, 135],
};

/** Corners in units of half the size; the circle has none. */
const CORNERS: Record<string, readonly (readonly [number, number])[]> = {
  circle: [],
  square: [[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]],
  triangle: [[0, -1], [1, 0.85], [-1, 0.85]],
  diamond: [[0, -1.05], [0.75, 0], [0, 1.05], [-0.75, 0]],
  cross: [
    [-0.34, -1],
    [0.34, -1],
    [0.34, -0.34],
    [1, -0.34],
    [1, 0.34],
    [0.34, 0.34],
    [0.34, 1],
    [-0.34, 1],
    [-0.34, 0.34],
    [-1, 0.34],
    [-1, -0.34],
    [-0.34, -0.34],
  ],
  star: Array.from({ length: 10 }, (_, i) => {
    const radius = i % 2 === 0 ? 1 : 0.42;
    return [radius * Math.sin(i * Math.PI / 5), -radius * Math.cos(i * Math.PI / 5)] as const;
  }),
};

/** Names of shapes, one and several. */
export const SHAPES: Record<string, string> = {
  circle: "circles",
  square: "squares",
  triangle: "triangles",
  star: "stars",
  cross: "crosses",
  diamond: "diamonds",
};

const COUNTS = ["no", "one", "two", "three", "four", "five"];

/** Equal shapes. */
export interface Group {
  /** 1 to 5. */
  count: number;
  /** A key of `COLOURS`. */
  colour: string;
  /** A key of `SHAPES`. */
  shape: string;
}

/** One group, or two of which the first is above or to the left. */
export interface Scene {
  width: number;
  height: number;
  groups: readonly Group[];
  relation?: "above" | "left of";
}

/** A drawn scene. */
export interface Drawing {
  /** height × width × RGB. */
  data: Uint8Array;
  width: number;
  height: number;
}

/** What the model should say of a scene. */
export function caption({ groups, relation }: Scene): string {
  const [first, second] = groups.map(({ count, colour, shape }) =>
    count === 1
      ? `${/^[aeiou]/.test(colour) ? "an" : "a"} ${colour} ${shape}`
      : `${COUNTS[count]} ${colour} ${SHAPES[shape]}`
  );
  const text = relation === undefined ? first : `${first} ${relation} ${second}`;
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}

/** A scene of random colours, shapes and counts. */
export function randomScene(next: Random): Scene {
  const ratio = Math.exp(between(next, -0.6, 0.6)), side = between(next, 200, 400);
  const size = { width: Math.round(side * Math.sqrt(ratio)), height: Math.round(side / Math.sqrt(ratio)) };
  const colours = Object.keys(COLOURS), shapes = Object.keys(SHAPES);
  const colour = pick(next, colours);
  if (next() < 0.5) {
    return { ...size, groups: [{ count: pick(next, [1, 1, 2, 3, 4]), colour, shape: pick(next, shapes) }] };
  }
  const other = pick(next, colours.filter((name) => name !== colour));
  const groups = [colour, other].map((colour) => ({
    count: pick(next, [1, 1, 2, 3]),
    colour,
    shape: pick(next, shapes),
  }));
  return { ...size, groups, relation: pick(next, ["above", "left of"] as const) };
}

/** Places and paints the shapes of a scene. */
export function draw({ width, height, groups, relation }: Scene, next: Random): Drawing {
  const canvas = new Canvas(width, height, [250, 250, 248]);
  const share = between(next, 0.45, 0.55);
  groups.forEach((group, i) => {
    let [x0, y0, x1, y1] = [0.03 * width, 0.03 * height, 0.97 * width, 0.97 * height];
    if (relation === "above") {
      const middle = y0 + (y1 - y0) * share;
      if (i === 0) y1 = middle - 2;
      else y0 = middle + 2;
    } else if (relation === "left of") {
      const middle = x0 + (x1 - x0) * share;
      if (i === 0) x1 = middle - 2;
      else x0 = middle + 2;
    }
    place(canvas, group, [x0, y0, x1, y1], next);
  });
  return canvas.picture();
}

/** Puts equal shapes on a grid inside a box. */
function place(
  canvas: Canvas,
  { count, colour, shape }: Group,
  [x0, y0, x1, y1]: [number, number, number, number],
  next: Random,
): void {
  const width = x1 - x0, height = y1 - y0;
  let cell = 0, columns = 1;
  for (let tried = 1; tried <= count; tried++) {
    const side = Math.min(width / tried, height / Math.ceil(count / tried));
    if (side > cell) [cell, columns] = [side, tried];
  }
  const rows = Math.ceil(count / columns);
  const size = cell * between(next, 0.6, 0.8), slack = (cell - size) / 2;
  const left = x0 + (width - columns * cell) * next(), top = y0 + (height - rows * cell) * next();
  const turn = between(next, -0.1, 0.1);
  for (let i = 0; i < count; i++) {
    const x = left + (i % columns + 0.5) * cell + between(next, -0.5, 0.5) * slack;
    const y = top + (Math.floor(i / columns) + 0.5) * cell + between(next, -0.5, 0.5) * slack;
    canvas.fill(shape, x, y, size, COLOURS[colour], turn);
  }
}

/** Samples of one pixel in each direction. */
const SAMPLES = 3;

/** A canvas that fills shapes with smooth edges. */
export class Canvas {
  readonly #data: Uint8Array;
  readonly #width: number;
  readonly #height: number;

  /** A canvas of one colour. */
  constructor(width: number, height: number, ground: Colour) {
    [this.#width, this.#height] = [width, height];
    this.#data = new Uint8Array(width * height * 3);
    for (let i = 0; i < this.#data.length; i++) this.#data[i] = ground[i % 3];
  }

  /** What was drawn. */
  picture(): Drawing {
    return { data: this.#data, width: this.#width, height: this.#height };
  }

  /** Fills a shape of `size` pixels around (x, y), turned by `turn` radians. */
  fill(shape: string, x: number, y: number, size: number, colour: Colour, turn = 0): void {
    const half = size / 2, reach = Math.ceil(half * 1.5);
    const [cos, sin] = [Math.cos(turn), Math.sin(turn)];
    for (let row = Math.max(0, Math.floor(y - reach)); row < Math.min(this.#height, y + reach); row++) {
      for (
        let column = Math.max(0, Math.floor(x - reach));
        column < Math.min(this.#width, x + reach);
        column++
      ) {
        let covered = 0;
        for (let s = 0; s < SAMPLES * SAMPLES; s++) {
          const dx = (column + (s % SAMPLES + 0.5) / SAMPLES - x) / half;
          const dy = (row + (Math.floor(s / SAMPLES) + 0.5) / SAMPLES - y) / half;
          if (isInside(shape, dx * cos + dy * sin, dy * cos - dx * sin)) covered++;
        }
        const share = covered / SAMPLES ** 2, at = (row * this.#width + column) * 3;
        for (let c = 0; c < 3; c++) {
          this.#data[at + c] = Math.round(this.#data[at + c] * (1 - share) + colour[c] * share);
        }
      }
    }
  }
}

/** Whether a point, in units of half the size, lies inside a shape. */
function isInside(shape: string, x: number, y: number): boolean {
  if (shape === "circle") return x * x + y * y < 1;
  const corners = CORNERS[shape];
  let inside = false;
  for (let i = 0, j = corners.length - 1; i < corners.length; j = i++) {
    const [ax, ay] = corners[i], [bx, by] = corners[j];
    if (ay > y !== by > y && x < (bx - ax) * (y - ay) / (by - ay) + ax) inside = !inside;
  }
  return inside;
}
