/** The conformance table on the CPU device, one test per op and instruction set. */
import { assert, assertEquals } from "@std/assert";
import { Device } from "../../ffi/device.ts";
import { DeviceError } from "../../src/errors.ts";
import { allCases } from "./cases.ts";
import { prepare, type Prepared, type Row, runCase } from "./runner.ts";

const LEVELS = Deno.build.arch === "x86_64" ? ["scalar", "avx2", "avx512"] : ["scalar", "neon"];

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

/** Whether this CPU has a level. Any other failure is left to the tests. */
async function lacks(level: string): Promise<boolean> {
  try {
    using _device = await Device.open("cpu", { level });
    return false;
  } catch (error) {
    return error instanceof DeviceError && ["no_device", "unsupported"].includes(error.code);
  }
}

const lacking = new Set<string>();
for (const level of LEVELS) if (await lacks(level)) lacking.add(level);

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
