/** Named devices for predictions: published peak figures, and shares of them that good kernels reach. */

/** What a prediction needs to know of a device. */
export interface Machine {
  /** for people */ name: string;
  /** peak memory bandwidth in bytes per second */ bandwidth: number;
  /** peak f32 operations per second */ flops: number;
  /** seconds between dependent dispatches */ dispatch: number;
}

/** Share of the peak bandwidth that a streaming kernel reaches. */
const BANDWIDTH_SHARE = 0.75;
/** Share of the peak arithmetic that a tiled matrix product reaches. */
const FLOPS_SHARE = 0.5;

const APPLE_DISPATCH = 3e-6;

// name: [bandwidth in GB/s, f32 TFLOPS]. Apple's figures for the largest GPU of each chip.
const APPLE: Record<string, [number, number]> = {
  "M1": [68, 2.6],
  "M1 Pro": [200, 5.3],
  "M1 Max": [400, 10.6],
  "M1 Ultra": [800, 21.2],
  "M2": [100, 3.6],
  "M2 Pro": [200, 6.8],
  "M2 Max": [400, 13.6],
  "M2 Ultra": [800, 27.2],
  "M3": [100, 4.1],
  "M3 Pro": [150, 7.4],
  "M3 Max": [400, 16.4],
  "M3 Ultra": [819, 32.8],
  "M4": [120, 4.6],
  "M4 Pro": [273, 9.2],
  "M4 Max": [546, 18.4],
  "M5": [153, 5.7],
};

/** Every named device. */
export const MACHINES: readonly Machine[] = [
  ...Object.entries(APPLE).map(([name, [gigabytes, teraflops]]) => ({
    name,
    bandwidth: gigabytes * 1e9,
    flops: teraflops * 1e12,
    dispatch: APPLE_DISPATCH,
  })),
  { name: "H200", bandwidth: 4.8e12, flops: 67e12, dispatch: 2e-6 },
  { name: "cpu", bandwidth: 20e9, flops: 0.15e12, dispatch: 2e-6 }, // two cores of a server
];

/** Chips that stand for a kind of device where no chip is named. */
const TYPICAL: Record<string, string> = { metal: "M4", cuda: "H200", auto: "cpu" };

/** A device by name (case does not matter) or by kind; undefined if there is none. */
export function machineNamed(name: string): Machine | undefined {
  const wanted = (TYPICAL[name.toLowerCase()] ?? name).toLowerCase();
  return MACHINES.find((machine) => machine.name.toLowerCase() === wanted);
}

/** Predicted seconds of one op. */
export function secondsOn(
  machine: Machine,
  cost: { bytes: number; flops: number; dispatches: number },
): number {
  const memory = cost.bytes / (machine.bandwidth * BANDWIDTH_SHARE);
  const arithmetic = cost.flops / (machine.flops * FLOPS_SHARE);
  return Math.max(memory, arithmetic) + cost.dispatches * machine.dispatch;
}
