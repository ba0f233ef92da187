/** Which module gets how many bits: one format for all, recipes by name, and recipes of one's own. */
import type { AffineBits, AffineGroupSize } from "../checkpoint/tensor.ts";
import { InvalidArgument } from "../errors.ts";
import type { AffineFormat } from "./affine.ts";
import { withoutByteOrderMark } from "../byte_order_mark.ts";

/** A matrix of the text network. */
export interface ModulePlace {
  /** module path without prefix, as `layers.0.mlp.down_proj` */ path: string;
  /** layers of the model */ layers: number;
  /** the module is (also) the language model's head */ isHead: boolean;
}

/** The format of a module; false leaves it as it is. */
export type Recipe = (module: ModulePlace) => AffineFormat | false;

/** The recipes that MLX users know by these names, and one that keeps what Gemma 4 is most sensitive in. */
const NAMED: Readonly<Record<string, { low: AffineBits; high: AffineBits; table?: AffineBits }>> = {
  mixed_2_6: { low: 2, high: 6 },
  mixed_3_4: { low: 3, high: 4 },
  mixed_3_6: { low: 3, high: 6 },
  mixed_4_6: { low: 4, high: 6 },
  mixed_4_8: { low: 4, high: 8, table: 8 },
};

/** Names of the recipes that come with the library. */
export const RECIPES: readonly string[] = Object.keys(NAMED);

const ROUTER_BITS = 8; // a wrong choice of experts costs more than the few bytes

/** One format for all; routers of experts keep 8 bits. */
export function uniform(format: AffineFormat): Recipe {
  return ({ path }) =>
    path.endsWith("router.proj") && format.bits < ROUTER_BITS ? { ...format, bits: ROUTER_BITS } : format;
}

/**
 * A named recipe: more bits for the head, and for value and down projections of the first and last eighth of the layers and
 * every third between; in `mixed_4_8` also for the table and projection of per-layer inputs. Throws `InvalidArgument`.
 */
export function namedRecipe(name: string, groupSize: AffineGroupSize): Recipe {
  if (!Object.hasOwn(NAMED, name)) {
    throw new InvalidArgument(
      `"${name}" is no recipe. There are ${RECIPES.join(", ")}, or write a file that ends in .json.`,
    );
  }
  const { low, high, table = low } = NAMED[name];
  return (module) => {
    const { path, layers, isHead } = module;
    if (path.endsWith("router.proj")) return { bits: ROUTER_BITS, groupSize };
    if (path === "embed_tokens_per_layer" || path === "per_layer_model_projection") {
      return { bits: table, groupSize };
    }
    const index = Number(/^layers\.(\d+)\./.exec(path)?.[1] ?? NaN);
    const eighth = Math.floor(layers / 8);
    const sensitive = index < eighth || index >= Math.floor(7 * layers / 8) || (index - eighth) % 3 === 2;
    const more = isHead || sensitive && /(v_proj|down_proj)$/.test(path);
    return { bits: more ? high : low, groupSize };
  };
}

/**
 * A recipe from JSON: an object of patterns (`*` stands for any text) to `{"bits", "group"}` or false. The first pattern
 * that fits a module's path decides; where none fits, `otherwise` does. Throws `InvalidArgument`.
 */
export function recipeFromJson(
  text: string,
  from: string,
  otherwise: Recipe,
  groupSize: AffineGroupSize,
): Recipe {
  let value: unknown;
  try {
    value = JSON.parse(withoutByteOrderMark(text));
  } catch (cause) {
    throw new InvalidArgument(`${from} is not JSON.`, { cause });
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new InvalidArgument(
      `${from} must be an object of module patterns, as {"*.down_proj": {"bits": 6}}.`,
    );
  }
  const rules = Object.entries(value).map(([pattern, rule]) => ({
    pattern: new RegExp(`^${pattern.split("*").map((part) => part.replace(/[^\w]/g, "\\$&")).join(".*")}$`),
    format: rule === false ? false as const : ruleFormat(rule, pattern, from, groupSize),
  }));
  return (module) => rules.find(({ pattern }) => pattern.test(module.path))?.format ?? otherwise(module);
}

function ruleFormat(rule: unknown, pattern: string, from: string, groupSize: AffineGroupSize): AffineFormat {
  const { bits, group = groupSize, ...others } = (rule ?? {}) as Record<string, unknown>;
  if (typeof rule !== "object" || rule === null || Object.keys(others).length > 0) {
    throw new InvalidArgument(`${from}: "${pattern}" must be false or {"bits": …, "group": …}.`);
  }
  return affineFormat(bits, group, `${from}: "${pattern}"`);
}

/** Checks bits and group size. Throws `InvalidArgument`. */
export function affineFormat(bits: unknown, groupSize: unknown, what: string): AffineFormat {
  if (![2, 3, 4, 5, 6, 8].includes(bits as number)) {
    throw new InvalidArgument(`${what}: bits are ${bits}; they must be 2, 3, 4, 5, 6 or 8.`);
  }
  if (![32, 64, 128].includes(groupSize as number)) {
    throw new InvalidArgument(`${what}: the group is ${groupSize}; it must be 32, 64 or 128.`);
  }
  return { bits: bits as AffineBits, groupSize: groupSize as AffineGroupSize };
}

/** The format for a matrix of so many columns: smaller groups where the wanted ones do not fit; false where none does. */
export function fitting(format: AffineFormat, columns: number): AffineFormat | false {
  const groupSize = ([format.groupSize, 64, 32] as const).find((size) =>
    size <= format.groupSize && columns % size === 0
  );
  return groupSize === undefined ? false : { ...format, groupSize };
}
