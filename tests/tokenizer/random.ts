/** Repeatable pseudo-random numbers for property tests. */

/** A generator of integers in [0, below). */
export function randomIntegers(seed: number): (below: number) => number {
  let state = seed >>> 0;
  return (below) => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return Math.floor(((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32 * below);
  };
}

/** Text of `length` characters from all over Unicode, lone surrogates excluded. */
export function randomText(random: (below: number) => number, length: number): string {
  const ranges = [
    [0, 0x80],
    [0x20, 0x7f],
    [0x61, 0x7b],
    [0x80, 0x800],
    [0x800, 0xd800],
    [0xe000, 0x10000],
    [
      0x10000,
      0x110000,
    ],
    [0x2581, 0x2582],
    [0x20, 0x21],
  ];
  let text = "";
  for (let i = 0; i < length; i++) {
    const [from, to] = ranges[random(ranges.length)];
    text += String.fromCodePoint(from + random(to - from));
  }
  return text;
}
