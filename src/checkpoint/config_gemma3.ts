/** The layer list of a Gemma 3 text config: all layers alike, every sixth attends to everything. */
import type { LayerConfig, RopeConfig } from "./config.ts";
import { divisor, evenDim, layerCount, namedKinds } from "./config_layers.ts";
import type { Fields } from "./fields.ts";

const PATTERN = 6; // five sliding layers, one full

/** Reads and checks all layers of the text config. Throws `CheckpointError` that names the key and the value. */
export function parseGemma3Layers(text: Fields): LayerConfig[] {
  const kinds = layerKinds(text);
  const headDim = evenDim(text, "head_dim", text.integer("head_dim", { or: 256 }));
  const heads = text.integer("num_attention_heads", { or: 8 });
  const kvHeads = divisor(text, "num_key_value_heads", text.integer("num_key_value_heads", { or: 4 }), heads);
  const mlpWidth = text.integer("intermediate_size", { or: 9216 });
  const window = text.integer("sliding_window", { or: 4096 });
  return kinds.map((kind, index) => ({
    index,
    kind,
    headDim,
    heads,
    kvHeads,
    window: kind === "sliding" ? window : null,
    keysAreValues: false,
    kvOwner: index,
    mlpWidth,
    rope: parseRope(text, kind, headDim),
    experts: null,
    mediaBlock: "causal",
  }));
}

function layerKinds(text: Fields): LayerConfig["kind"][] {
  const count = layerCount(text, 26);
  if (text.has("layer_types")) return namedKinds(text, count);
  const key = text.has("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
  const pattern = text.integer(key, { or: PATTERN });
  return Array.from({ length: count }, (_, i) => (i + 1) % pattern === 0 ? "full" : "sliding");
}

/** Files give the bases by layer kind, or one for full layers, one for sliding ones, and a scaling of the full ones. */
function parseRope(text: Fields, kind: LayerConfig["kind"], headDim: number): RopeConfig {
  const full = kind === "full";
  const byKind = text.object("rope_parameters");
  const own = byKind?.object(`${kind}_attention`) ?? null;
  if (byKind !== null && own === null) {
    throw text.wrong("rope_parameters", `given for ${kind}_attention too`);
  }
  const scaling = own ?? (full ? text.object("rope_scaling") : null);
  const theta = own !== null
    ? own.positive("rope_theta", full ? 1_000_000 : 10_000)
    : full
    ? text.positive("rope_theta", 1_000_000)
    : text.positive("rope_local_base_freq", 10_000);
  let factor = 1;
  if (scaling !== null) {
    const key = scaling.has("rope_type") ? "rope_type" : "type";
    const type = scaling.oneOf(key, ["default", "linear"], "default");
    if (type === "linear") factor = scaling.positive("factor");
  }
  return { theta, rotatedPairs: headDim / 2, factor };
}
