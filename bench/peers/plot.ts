/**
 * Draws what `speed.ts --json` wrote as bars with their spread, one row of panels for each file:
 *
 *     deno run -A bench/peers/plot.ts OUT.svg FILE.json…
 */
import type { TopLevelSpec } from "npm:vega-lite@6.4.1";
import { median } from "../statistics.ts";
import { type Comparison, OWN, type PeerRecord } from "./record.ts";

/** What a panel shows. */
interface Panel {
  title: string;
  samples: (peer: PeerRecord) => number[];
}

const PANELS: Panel[] = [
  { title: "prefill, tokens/s", samples: (peer) => peer.prefill },
  { title: "decode, tokens/s", samples: (peer) => peer.decode },
  { title: "resident, MB", samples: (peer) => peer.resident.map((bytes) => bytes / 1e6) },
];

function panel({ peers }: Comparison, { title, samples }: Panel, isFirst: boolean): unknown {
  const values = Object.entries(peers).flatMap(([name, peer]) => {
    const all = samples(peer);
    if (all.length === 0) return [];
    const middle = median(all);
    const label = Number(middle.toPrecision(3)).toString();
    return [{
      name,
      middle,
      least: Math.min(...all),
      most: Math.max(...all),
      label,
      own: name.startsWith(OWN),
    }];
  });
  const axis = isFirst ? { labelLimit: 300, ticks: false, domain: false } : null;
  const y = { field: "name", type: "nominal", sort: null, title: null, axis };
  return {
    width: 170,
    height: { step: 22 },
    title: { text: title, fontWeight: "normal", fontSize: 11 },
    data: { values },
    layer: [
      {
        mark: { type: "bar", height: 14 },
        encoding: {
          y,
          x: { field: "middle", type: "quantitative", title: null, axis: { tickCount: 3, grid: false } },
          color: {
            field: "own",
            scale: { domain: [true, false], range: ["#3b6fb6", "#b9bec7"] },
            legend: null,
          },
        },
      },
      {
        mark: { type: "rule", color: "#444444" },
        encoding: { y, x: { field: "least", type: "quantitative" }, x2: { field: "most" } },
      },
      {
        mark: { type: "text", align: "left", dx: 5, fontSize: 10 },
        encoding: { y, x: { field: "most", type: "quantitative" }, text: { field: "label" } },
      },
    ],
  };
}

const [out, ...files] = Deno.args;
if (files.length === 0) {
  console.error("usage: deno run -A bench/peers/plot.ts OUT.svg FILE.json…");
  Deno.exit(2);
}
const { compile } = await import("npm:vega-lite@6.4.1");
const { parse, View } = await import("npm:vega@6.2.0");
const comparisons = files.map((file): Comparison => JSON.parse(Deno.readTextFileSync(file)));
const rows = comparisons.map((comparison) => ({
  title: { text: `${comparison.title}, ${comparison.threads} threads`, anchor: "start", fontSize: 12 },
  hconcat: PANELS.map((each, i) => panel(comparison, each, i === 0)),
}));
const spec = { background: "white", config: { view: { stroke: null } }, vconcat: rows };
const svg = await new View(parse(compile(spec as unknown as TopLevelSpec).spec), { renderer: "none" })
  .toSVG();
await Deno.writeTextFile(out, svg + "\n");
