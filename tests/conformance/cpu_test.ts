/** The conformance table on the CPU device, one test per op and instruction set. */
import { assert, assertEquals } from "@std/assert";
import { Device } from "../../ffi/device.ts";
import { allCases } from "../../src/conformance/cases.ts";
import { lackingLevels, LEVELS } from "./levels.ts";
import { prepare, type Prepared, type Row, runCase } from "../../src/conformance/runner.ts";

const cases = allCases();
const ops = [...new Set(cases.map(({ op }) => op))];

/** Reference results of the op at hand; computed once, used by every level. */
let current: { op: string; prepared: Prepared[] } | undefined;

function preparedFor(op: string): Prepared[] {
  if (current?.op !== op) {
    current = { op, prepared: cases.filter((c) => c.op === op).map(prepare) };
  }
  return current.prepared;
}

function describe({ op, case: name, precision, error, tolerance, reason }: Row): string {
  return `${op} ${name} (${precision}): error ${error.toExponential(2)}, allowed ${tolerance}` +
    (reason ? `; ${reason}` : "");
}

const lacking = await lackingLevels();

for (const op of ops) {
  for (const level of LEVELS) {
    Deno.test({
      name: `conformance: ${op} agrees with the oracle on cpu ${level}`,
      ignore: lacking.has(level),
      async fn() {
        using device = await Device.open("cpu", { level, threads: 2 });
        assertEquals(device.info().level, level);
        const failed: Row[] = [];
        let count = 0;
        for (const prepared of preparedFor(op)) {
          for (const exact of [true, false]) {
            const row = await runCase(device, prepared, exact);
            count++;
            if (!row.pass) failed.push(row);
          }
        }
        assert(count > 0);
        assert(
          failed.length === 0,
          `${failed.length} of ${count} cases fail:\n${failed.slice(0, 30).map(describe).join("\n")}`,
        );
      },
    });
  }
}
