/**
 * Four small plans that together have every op kind, their buffers and their input. The numbers mean nothing; every extent is
 * different where it can be.
 */
export { expertSample } from "./sample/experts.ts";
export { outputBytes, sampleBlock, sampleBuffers, sampleInput } from "./sample/input.ts";
export type { Sample } from "./sample/parts.ts";
export { elementarySample, fusedSample } from "./sample/text.ts";
export { towerSample } from "./sample/towers.ts";
