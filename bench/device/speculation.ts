/** A drafter beside its target through the whole engine, where every draft counts as right whatever the target draws. */
import type { DeviceKind } from "../../ffi/device.ts";
import { Pass, type RunStatistics } from "../../ffi/pass.ts";
import { loadWith } from "../../src/engine/load.ts";
import { CANDIDATE_OUTPUTS, STATE_OUTPUT } from "../../src/engine/results.ts";
import { median } from "../statistics.ts";

/** Forwards of one sequence, each with the drafts before it. */
export interface DraftedTiming {
  /** right ones of each forward */ drafts: number;
  /** of a forward, and of the drafter's steps before it */ seconds: number;
  /** of both, by tokens that were gained */ dispatchesPerToken: number;
  tokensPerSecond: number;
}

const PROMPT = 128;
const WARM_UP = 3;

/** Times `forwards` forwards with each number of drafts. `folder` and `drafter` are checkpoints that belong together. */
export async function timeDrafted(
  folder: string,
  drafter: string,
  device: DeviceKind,
  drafts: readonly number[],
  forwards: number,
  matrixUnits: boolean,
): Promise<DraftedTiming[]> {
  let dispatches = 0;
  const counted = <T extends RunStatistics>(statistics: T): T => {
    dispatches += statistics.dispatches;
    return statistics;
  };
  const { run, runSync } = Pass.prototype;
  Pass.prototype.run = async function (...args) {
    return counted(await run.apply(this, args));
  };
  Pass.prototype.runSync = function (...args) {
    return counted(runSync.apply(this, args));
  };
  try {
    await using model = await loadWith(folder, { device, matrixUnits, drafter, contextLength: 2048 }, {
      keptPrefixes: 0,
    });
    const { forward } = model.engine;
    const timings: DraftedTiming[] = [];
    for (const count of drafts) {
      const sequence = forward.sequence();
      using scope = new DisposableStack();
      scope.defer(() => sequence.dispose());
      let token = 5;
      let state = new Float32Array(0);
      const ids = Array.from({ length: PROMPT }, (_, i) => 3 + i * 31 % 1000);
      await forward.prefill(
        sequence,
        ids,
        { outputs: 1, mask: CANDIDATE_OUTPUTS | STATE_OUTPUT },
        (results) => state = results.state(0),
      );
      const times: number[] = [];
      for (let i = 0; i < forwards + WARM_UP; i++) {
        if (i === WARM_UP) dispatches = 0;
        const started = performance.now();
        await forward.speculate({
          sequence,
          mask: CANDIDATE_OUTPUTS | STATE_OUTPUT,
          signal: undefined,
          rows: 1 + count,
          draft: { token, state, count, request: {}, choose: ({ ids }) => ids[0] },
          build: (drafted) => ({
            tokens: [token, ...drafted],
            requests: Array.from({ length: 1 + drafted.length }, () => ({})),
          }),
          take: (results) => {
            if (results.rows !== 1 + count) throw new Error(`${results.rows} rows instead of ${1 + count}`);
            state = results.state(results.rows - 1);
            token = results.candidates(results.rows - 1).ids[0];
            return results.rows;
          },
        });
        times.push((performance.now() - started) / 1e3);
      }
      const seconds = median(times.slice(WARM_UP));
      timings.push({
        drafts: count,
        seconds,
        dispatchesPerToken: dispatches / (forwards * (1 + count)),
        tokensPerSecond: (1 + count) / seconds,
      });
    }
    return timings;
  } finally {
    Object.assign(Pass.prototype, { run, runSync });
  }
}
