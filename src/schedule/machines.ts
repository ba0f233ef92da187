/** Named devices for predictions: what they can do at most, the shares of it that the kernels reach, and the cost of starting them. */

/** What a prediction needs to know of a device. */
export interface Machine {
  /** for people */ name: string;
  /** peak memory bandwidth in bytes per second */ bandwidth: number;
  /** peak f32 operations per second */ flops: number;
  /** seconds between dependent dispatches */ dispatch: number;
  /** peak operations per second of matrix products of a prompt, f16 operands. Default: `flops` */ matrixFlops?:
    number;
  /** share of the peak bandwidth that the kernels reach. Default 0.75 */ bandwidthShare?: number;
  /** share of the peak arithmetic that the kernels reach. Default 0.5 */ flopsShare?: number;
  /** the same of `matrixFlops`. Default: `flopsShare` */ matrixShare?: number;
  /** seconds of a forward beside its dispatches: encoding, commit, wait. Default 0 */ forward?: number;
  /** bytes of threadgroup memory that one threadgroup may have. Default 32 KiB */ threadgroupBytes?: number;
  /**
   * The kernels of matrix units copy codes into threadgroup memory ahead of their use, as those built as PTX do. Default false
   */
  copiesCodes?: boolean;
  /** Threadgroups may begin together and send each other values (a cluster), which attention makes use of. Default false */
  clusters?: boolean;
  /** Cores over which these kernels are dealt out: multiprocessors. Default 128 */
  cores?: number;
}

/** Names of the fields of `Machine`. */
export const MACHINE_FIELDS: readonly (keyof Machine)[] = [
  "name",
  "bandwidth",
  "flops",
  "dispatch",
  "matrixFlops",
  "bandwidthShare",
  "flopsShare",
  "matrixShare",
  "forward",
  "threadgroupBytes",
  "copiesCodes",
  "clusters",
  "cores",
];

/** Bytes of threadgroup memory where a machine does not tell, as of Apple's GPUs. */
export const THREADGROUP_BYTES: number = 32 * 2 ** 10;

/** Cores where a machine does not tell. */
export const CORES = 128;

const BANDWIDTH_SHARE = 0.75;
const FLOPS_SHARE = 0.5;

/** Of a dispatch after a barrier in a concurrent encoder, and of a command buffer from commit to the end of the wait. */
const APPLE_DISPATCH = 3e-6;
const APPLE_FORWARD = 150e-6;
/** f32 multiplications and additions of one GPU core in a clock: 128 lanes, fused. */
const APPLE_CORE_FLOPS = 256;

/**
 * Chip: [GB/s, GPU cores, GPU clock in MHz], each chip with its largest GPU. Bandwidths and cores are the maker's specification;
 * the clocks, which the maker does not tell, are those that reviewers read from running machines, good to about a tenth. They matter
 * for prompts alone: a token is bound by bandwidth. The matrix units of the M5's cores are not counted, since the kernels do not
 * use them.
 */
const APPLE: Record<string, [number, number, number]> = {
  "M1": [68, 8, 1278],
  "M1 Pro": [200, 16, 1296],
  "M1 Max": [400, 32, 1296],
  "M1 Ultra": [800, 64, 1296],
  "M2": [100, 10, 1398],
  "M2 Pro": [200, 19, 1398],
  "M2 Max": [400, 38, 1398],
  "M2 Ultra": [800, 76, 1398],
  "M3": [100, 10, 1398],
  "M3 Pro": [150, 18, 1398],
  "M3 Max": [400, 40, 1398],
  "M3 Ultra": [819, 80, 1398],
  "M4": [120, 10, 1470],
  "M4 Pro": [273, 20, 1578],
  "M4 Max": [546, 40, 1578],
  "M5": [153, 10, 1578],
  "M5 Pro": [307, 20, 1578],
  "M5 Max": [614, 40, 1578],
};

/** Every named device. */
export const MACHINES: readonly Machine[] = [
  ...Object.entries(APPLE).map(([name, [gigabytes, cores, megahertz]]) => ({
    name,
    bandwidth: gigabytes * 1e9,
    flops: cores * APPLE_CORE_FLOPS * megahertz * 1e6,
    dispatch: APPLE_DISPATCH,
    forward: APPLE_FORWARD,
  })),
  {
    // Peaks: the maker's data sheet, without sparsity. The rest fits what was measured with models of 4 bits (bench/RESULTS.md).
    name: "H200",
    bandwidth: 4.8e12,
    flops: 67e12,
    matrixFlops: 989e12,
    bandwidthShare: 0.5,
    flopsShare: 0.25,
    matrixShare: 0.14,
    dispatch: 3.4e-6,
    forward: 20e-6,
    threadgroupBytes: 227 * 2 ** 10,
    copiesCodes: true,
    clusters: true,
    cores: 132,
  },
  { name: "cpu", bandwidth: 20e9, flops: 0.15e12, dispatch: 2e-6 }, // two cores of a server
];

/** Chips that stand for a kind of device where no chip is named. */
const TYPICAL: Record<string, string> = { metal: "M4", cuda: "H200", auto: "cpu" };

/** A device by name (case does not matter, nor does a leading "Apple") or by kind; undefined if there is none. */
export function machineNamed(name: string): Machine | undefined {
  const wanted = (TYPICAL[name.toLowerCase()] ?? name).toLowerCase().replace(/^(apple|nvidia) /, "");
  return MACHINES.find((machine) => machine.name.toLowerCase() === wanted);
}

/** What one op costs. */
export interface Work {
  bytes: number;
  flops: number;
  dispatches: number;
  /** what does it: lanes, or matrix units with operands in f16 (products of prompt rows, and of decode rows with `matrixUnits`) */
  arithmetic: "plain" | "matrix";
}

/** Predicted seconds of one op: memory and arithmetic overlap, dispatches wait for each other. */
export function secondsOn(machine: Machine, work: Work): number {
  const { bandwidthShare = BANDWIDTH_SHARE, flopsShare = FLOPS_SHARE } = machine;
  const { matrixFlops = machine.flops, matrixShare = flopsShare } = machine;
  const memory = work.bytes / (machine.bandwidth * bandwidthShare);
  const arithmetic = work.flops /
    (work.arithmetic === "plain" ? machine.flops * flopsShare : matrixFlops * matrixShare);
  return Math.max(memory, arithmetic) + work.dispatches * machine.dispatch;
}
