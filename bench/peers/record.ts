/** What comparisons measured: parts of one comparison add up in a file of JSON. */
import { median, spread } from "../statistics.ts";

/** Rates of one peer in tokens/s. */
export interface Rates {
  prefill: number[];
  decode: number[];
  /** with a busy process on each core */ busyDecode: number[];
}

/** Everything about one peer. */
export interface PeerRecord extends Rates {
  /** seconds of each load */ load: number[];
  /** bytes after the last request of each part: all, and those of mapped files */ resident: number[];
  residentFiles: number[];
  /** pages read from disk while each part was timed */ majorFaults: number[];
  /** tokens of a prompt, and tokens decoded */ prompt: number;
  tokens: number;
}

/** A comparison, of one part or several. */
export interface Comparison {
  title: string;
  threads: number;
  /** read bandwidth in GB/s before and after each part */ bandwidth: [number, number][];
  /** of each part, ISO */ dates: string[];
  peers: Record<string, PeerRecord>;
}

const SAMPLES = [
  "prefill",
  "decode",
  "busyDecode",
  "load",
  "resident",
  "residentFiles",
  "majorFaults",
] as const;

/** A comparison without samples. */
export function emptyRecord(prompt: number, tokens: number): PeerRecord {
  const samples = { prefill: [], decode: [], busyDecode: [] };
  return { ...samples, load: [], resident: [], residentFiles: [], majorFaults: [], prompt, tokens };
}

/** The samples of both. Throws where the threads, or the tokens that a peer was asked for, are others. */
export function joined(before: Comparison, after: Comparison): Comparison {
  if (before.threads !== after.threads) {
    throw new RangeError(
      `The parts before ran with ${before.threads} threads, this one with ${after.threads}.`,
    );
  }
  const peers = structuredClone(before.peers);
  for (const [name, record] of Object.entries(after.peers)) {
    const own = peers[name] ??= emptyRecord(record.prompt, record.tokens);
    if (own.prompt !== record.prompt || own.tokens !== record.tokens) {
      throw new RangeError(`${name} was timed over ${own.prompt} and ${own.tokens} tokens before.`);
    }
    for (const key of SAMPLES) own[key].push(...record[key]);
  }
  return {
    ...after,
    bandwidth: [...before.bandwidth, ...after.bandwidth],
    dates: [...before.dates, ...after.dates],
    peers,
  };
}

/** Name by which a record is markbase's. */
export const OWN = "markbase";

/** What people read: medians with their spread, and markbase's against each other peer's. */
export function describe({ title, threads, bandwidth, peers }: Comparison): string {
  const lines = [
    `${title}, ${threads} threads, ${bandwidth.length} parts`,
    `read bandwidth ${spread(bandwidth.flat())} GB/s`,
  ];
  const names = Object.keys(peers);
  const shown = (samples: number[], unit: string) => samples.length > 0 ? `${spread(samples)} ${unit}` : "–";
  for (const [name, peer] of Object.entries(peers)) {
    lines.push(
      [
        name,
        `  prefill(${peer.prompt})  ${shown(peer.prefill, "tokens/s")}`,
        `  decode(${peer.tokens})   ${shown(peer.decode, "tokens/s")}`,
        ...(peer.busyDecode.length > 0
          ? [
            `  beside a busy process on each core ${shown(peer.busyDecode, "tokens/s")}, ` +
            `${(median(peer.busyDecode) / median(peer.decode)).toFixed(3)} of idle`,
          ]
          : []),
        `  load         ${shown(peer.load, "s")}`,
        `  resident     ${shown(peer.resident.map((bytes) => bytes / 1e6), "MB")}, of files ` +
        shown(peer.residentFiles.map((bytes) => bytes / 1e6), "MB"),
      ].join("\n"),
    );
  }
  for (const own of names.filter((name) => name.startsWith(OWN))) {
    for (const other of names.filter((name) => !name.startsWith(OWN))) {
      const ratio = (key: "prefill" | "decode" | "resident") => {
        const [a, b] = [peers[own][key], peers[other][key]];
        return a.length > 0 && b.length > 0 ? (median(a) / median(b)).toFixed(2) : "–";
      };
      lines.push(
        `${own} / ${other}: prefill ${ratio("prefill")}, decode ${ratio("decode")}, resident ${
          ratio("resident")
        }`,
      );
    }
  }
  return lines.join("\n");
}
