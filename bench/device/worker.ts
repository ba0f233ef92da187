/** Computes reference results of conformance cases: a message with case numbers in, one message for each case out. */
import { allCases } from "../../src/conformance/cases.ts";
import { prepare } from "../../src/conformance/runner.ts";

const scope = self as unknown as {
  onmessage: unknown;
  postMessage(message: unknown, transfer: Transferable[]): void;
};

scope.onmessage = ({ data }: MessageEvent<number[]>) => {
  const cases = allCases();
  for (const index of data) {
    const { problem, outputs, pages } = prepare(cases[index]);
    const arrays = [...problem.buffers, ...outputs, ...(pages ? [pages.written, pages.values] : [])];
    const transfer = [...new Set(arrays.map((array) => array.buffer as ArrayBuffer))];
    scope.postMessage({ index, problem, outputs, pages }, transfer);
  }
};
