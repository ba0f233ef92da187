/** The layer list of a text config: kinds, head sizes, windows, KV owners, rotary embedding, experts. */
import type { ExpertsConfig, LayerConfig, RopeConfig } from "./config.ts";
import type { Fields } from "./fields.ts";

const MAX_LAYERS = 1024;
const KINDS = { sliding_attention: "sliding", full_attention: "full" } as const;

/** What the layer list depends on beside the text config. */
export interface LayerContext {
  /** The `gemma4_unified` class. */
  unified: boolean;
  /** The assistant classes. */
  isDrafter: boolean;
  /** Whether media blocks are attended in both directions. */
  bidirectional: "none" | "vision";
}

/** Reads and checks all layers of the text config. Throws `CheckpointError` that names the key and the value. */
export function parseLayers(text: Fields, context: LayerContext): LayerConfig[] {
  const kinds = layerKinds(text);
  const shape = headShapes(text, kinds);
  const window = text.integer("sliding_window", { or: context.unified ? 1024 : 512 });
  const keysAreValues = text.boolean("attention_k_eq_v", false);
  const firstShared = kinds.length - sharedLayers(text, kinds.length, context.isDrafter);
  const mlpWidth = text.integer("intermediate_size", { or: 9216 });
  const doubleWide = text.boolean("use_double_wide_mlp", false);
  const experts = parseExperts(text);
  return kinds.map((kind, index) => {
    const shares = index >= firstShared;
    const { headDim, heads, kvHeads } = shape[index];
    return {
      index,
      kind,
      headDim,
      heads,
      kvHeads,
      window: kind === "sliding" ? window : null,
      keysAreValues: keysAreValues && kind === "full",
      kvOwner: shares ? ownerOf(index, firstShared, kinds, shape, text) : index,
      mlpWidth: shares && doubleWide ? 2 * mlpWidth : mlpWidth,
      rope: parseRope(text, kind, headDim),
      experts,
      mediaBlock: mediaBlock(kind, context),
    };
  });
}

function layerKinds(text: Fields): LayerConfig["kind"][] {
  const count = layerCount(text, 30);
  if (!text.has("layer_types")) {
    return Array.from({ length: count }, (_, i) => (i + 1) % 6 === 0 || i === count - 1 ? "full" : "sliding");
  }
  const kinds = namedKinds(text, count);
  if (kinds.at(-1) !== "full") throw text.wrong("layer_types", `a list that ends in "full_attention"`);
  return kinds;
}

/** `num_hidden_layers`, or `or` where the config leaves it out. */
export function layerCount(text: Fields, or: number): number {
  return text.integer("num_hidden_layers", { max: MAX_LAYERS, or });
}

/** The kinds that `layer_types` names. */
export function namedKinds(text: Fields, count: number): LayerConfig["kind"][] {
  const types = text.get("layer_types");
  if (!Array.isArray(types) || types.length !== count) {
    throw text.wrong("layer_types", `a list of num_hidden_layers = ${count} kinds`);
  }
  return types.map((type) => {
    if (typeof type !== "string" || !Object.hasOwn(KINDS, type)) {
      throw text.wrong(
        "layer_types",
        `a list of "sliding_attention" and "full_attention", without ${JSON.stringify(type)}`,
      );
    }
    return KINDS[type as keyof typeof KINDS];
  });
}

interface HeadShape {
  headDim: number;
  heads: number;
  kvHeads: number;
}

/**
 * Head sizes of each layer. Files spell the full layers' values as `global_head_dim` and
 * `num_global_key_value_heads` (which counts only where keys are values), or per layer in `per_layer_config`, or both.
 */
function headShapes(text: Fields, kinds: LayerConfig["kind"][]): HeadShape[] {
  const heads = text.integer("num_attention_heads", { or: 8 });
  const base = {
    headDim: evenDim(text, "head_dim", text.integer("head_dim", { or: 256 })),
    heads,
    kvHeads: divisor(text, "num_key_value_heads", text.integer("num_key_value_heads", { or: 4 }), heads),
  };
  const perLayer = perLayerConfig(text, kinds.length);
  const global = globalShape(text, base, perLayer === null);
  return kinds.map((kind, index) => {
    if (perLayer === null) return kind === "full" ? { ...base, ...global } : base;
    const shape = { ...base };
    const own = perLayer.get(index);
    if (own !== undefined) {
      shape.headDim = evenDim(own, "head_dim", own.integer("head_dim", { or: base.headDim }));
      const kvHeads = own.integer("num_key_value_heads", { or: base.kvHeads });
      shape.kvHeads = divisor(own, "num_key_value_heads", kvHeads, heads);
    }
    // A file with both spellings must mean the same by both.
    for (const [key, value] of [["headDim", global.headDim], ["kvHeads", global.kvHeads]] as const) {
      if (kind === "full" && value !== undefined && value !== shape[key]) {
        const spelled = key === "headDim" ? "global_head_dim" : "num_global_key_value_heads";
        throw text.wrong(spelled, `${shape[key]} as per_layer_config says for layer ${index}`);
      }
    }
    return shape;
  });
}

/** The full layers' values where the config gives them; the reference's default only if nothing else does. */
function globalShape(text: Fields, base: HeadShape, useDefault: boolean): Partial<HeadShape> {
  const shape: Partial<HeadShape> = {};
  if (useDefault || text.has("global_head_dim")) {
    shape.headDim = evenDim(text, "global_head_dim", text.integer("global_head_dim", { or: 512 }));
  }
  if (text.boolean("attention_k_eq_v", false) && text.has("num_global_key_value_heads")) {
    const key = "num_global_key_value_heads";
    shape.kvHeads = divisor(text, key, text.integer(key), base.heads);
  }
  return shape;
}

/** `per_layer_config` by layer index; its keys are indices, at times padded with zeros. Null when absent. */
function perLayerConfig(text: Fields, layers: number): Map<number, Fields> | null {
  const all = text.object("per_layer_config");
  if (all === null) return null;
  const byLayer = new Map<number, Fields>();
  for (const key of all.keys()) {
    const index = /^\d{1,9}$/.test(key) ? Number(key) : -1;
    if (index < 0 || index >= layers || byLayer.has(index)) {
      throw all.wrong(key, `under the index of one of the ${layers} layers, once`);
    }
    const own = all.object(key);
    if (own === null) throw all.wrong(key, "a JSON object");
    for (const name of own.keys()) {
      if (name !== "head_dim" && name !== "num_key_value_heads") {
        throw own.wrong(name, "absent: only head_dim and num_key_value_heads can differ by layer");
      }
    }
    byLayer.set(index, own);
  }
  return byLayer;
}

function sharedLayers(text: Fields, layers: number, isDrafter: boolean): number {
  const key = "num_kv_shared_layers";
  if (!isDrafter) return text.integer(key, { min: 0, max: layers - 1, or: 0 });
  // A drafter has no keys and values of its own; 0 stands for all of its layers.
  const shared = text.integer(key, { min: 0, or: 0 }) || layers;
  if (shared !== layers) throw text.wrong(key, `all ${layers} layers in a drafter`);
  return shared;
}

/** The last layer of the same kind that owns its keys and values. */
function ownerOf(
  index: number,
  firstShared: number,
  kinds: LayerConfig["kind"][],
  shape: HeadShape[],
  text: Fields,
): number {
  if (firstShared === 0) return -1;
  const owner = kinds.lastIndexOf(kinds[index], firstShared - 1);
  if (owner < 0) {
    throw text.wrong(
      "num_kv_shared_layers",
      `small enough to leave layer ${index} a ${kinds[index]} layer to share with`,
    );
  }
  if (shape[owner].headDim !== shape[index].headDim || shape[owner].kvHeads !== shape[index].kvHeads) {
    throw text.wrong(
      "num_kv_shared_layers",
      `such that layers ${owner} and ${index}, which share, have the same KV heads`,
    );
  }
  return owner;
}

const DEFAULT_ROPE = {
  sliding: { type: "default", theta: 10_000, partial: 1 },
  full: { type: "proportional", theta: 1_000_000, partial: 0.25 },
} as const;

function parseRope(text: Fields, kind: LayerConfig["kind"], headDim: number): RopeConfig {
  const defaults = DEFAULT_ROPE[kind];
  const own = text.object("rope_parameters")?.object(`${kind}_attention`) ?? null;
  if (own === null) {
    if (text.has("rope_parameters")) throw text.wrong("rope_parameters", `given for ${kind}_attention too`);
    return { theta: defaults.theta, rotatedPairs: Math.floor(defaults.partial * headDim / 2), factor: 1 };
  }
  const type = own.oneOf("rope_type", ["default", "proportional"], "default");
  const theta = own.positive("rope_theta", defaults.theta);
  const factor = own.positive("factor", 1);
  const partial = own.number("partial_rotary_factor", { min: 0, max: 1, or: 1 });
  if (type === "default" && partial !== 1) {
    throw own.wrong("partial_rotary_factor", "absent where rope_type is default");
  }
  return { theta, rotatedPairs: Math.floor(partial * headDim / 2), factor };
}

function parseExperts(text: Fields): ExpertsConfig | null {
  if (!text.boolean("enable_moe_block", false)) return null;
  const count = text.integer("num_experts", { max: 65_536 });
  return {
    count,
    topK: text.integer("top_k_experts", { max: count }),
    width: text.integer("moe_intermediate_size"),
  };
}

function mediaBlock(kind: LayerConfig["kind"], context: LayerContext): LayerConfig["mediaBlock"] {
  if (context.bidirectional === "none") return "causal";
  if (context.unified) return "whole";
  return kind === "sliding" ? "window" : "causal";
}

/** `value` if it can be the size of a head. */
export function evenDim(fields: Fields, key: string, value: number): number {
  if (value % 2 !== 0 || value > 65_536) throw fields.wrong(key, "an even integer up to 65536");
  return value;
}

/** `value` if it divides the number of heads. */
export function divisor(fields: Fields, key: string, value: number, heads: number): number {
  if (heads % value !== 0) throw fields.wrong(key, `a divisor of num_attention_heads = ${heads}`);
  return value;
}
