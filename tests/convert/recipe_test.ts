import { assertEquals, assertThrows } from "@std/assert";
import {
  affineFormat,
  fitting,
  namedRecipe,
  recipeFromJson,
  RECIPES,
  uniform,
} from "../../src/convert/recipe.ts";
import { InvalidArgument } from "../../src/errors.ts";

const base = { bits: 4, groupSize: 64 } as const;
const place = (path: string, layers = 16) => ({ path, layers, isHead: path === "embed_tokens" });
const bitsOf = (recipe: ReturnType<typeof uniform>, path: string, layers?: number) => {
  const format = recipe(place(path, layers));
  return format === false ? 0 : format.bits;
};

Deno.test("one format for all keeps the choice of experts at 8 bits", () => {
  assertEquals(uniform(base)(place("layers.3.mlp.up_proj")), base);
  assertEquals(bitsOf(uniform(base), "layers.3.router.proj"), 8);
  assertEquals(bitsOf(uniform({ bits: 8, groupSize: 32 }), "layers.3.router.proj"), 8);
});

Deno.test("mixed recipes give more bits to the head and to sensitive projections of the same layers as MLX does", () => {
  const recipe = namedRecipe("mixed_4_6", 64);
  // 16 layers: the first two, the last two, and every third between.
  const more = [0, 1, 4, 7, 10, 13, 14, 15];
  for (let layer = 0; layer < 16; layer++) {
    const wanted = more.includes(layer) ? 6 : 4;
    assertEquals(bitsOf(recipe, `layers.${layer}.mlp.down_proj`), wanted, `layer ${layer}`);
    assertEquals(bitsOf(recipe, `layers.${layer}.self_attn.v_proj`), wanted);
    assertEquals(bitsOf(recipe, `layers.${layer}.experts.switch_glu.down_proj`), wanted);
    assertEquals(bitsOf(recipe, `layers.${layer}.mlp.up_proj`), 4);
  }
  assertEquals(bitsOf(recipe, "embed_tokens"), 6);
  assertEquals(bitsOf(recipe, "embed_tokens_per_layer"), 4);
  assertEquals(bitsOf(namedRecipe("mixed_4_8", 64), "embed_tokens_per_layer"), 8);
  assertEquals(RECIPES.map((name) => bitsOf(namedRecipe(name, 32), "layers.8.mlp.gate_proj")), [
    2,
    3,
    3,
    4,
    4,
  ]);
  assertThrows(() => namedRecipe("mixed_9_9", 64), InvalidArgument, "mixed_4_6");
  assertThrows(() => namedRecipe("constructor", 64), InvalidArgument);
});

Deno.test("a recipe file decides by the first pattern that fits", () => {
  const text = JSON.stringify({
    "layers.0.*": false,
    "*.down_proj": { bits: 6, group: 32 },
    "layers.(1).x+": { bits: 2 },
  });
  const marked = recipeFromJson("\ufeff" + text, "r.json", uniform(base), 64); // as some editors write it
  assertEquals(marked(place("layers.10.mlp.down_proj")), { bits: 6, groupSize: 32 });
  const recipe = recipeFromJson(text, "r.json", uniform(base), 64);
  assertEquals(recipe(place("layers.0.mlp.down_proj")), false);
  assertEquals(recipe(place("layers.10.mlp.down_proj")), { bits: 6, groupSize: 32 });
  assertEquals(recipe(place("layers.10.mlp.up_proj")), base);
  assertEquals(bitsOf(recipe, "layers.(1).x+"), 2, "other signs stand for themselves");
  for (
    const wrong of [
      "",
      "[]",
      "null",
      "5",
      '{"a": 4}',
      '{"a": null}',
      '{"a": {"bits": 7}}',
      '{"a": {"bits": 4, "groups": 32}}',
      '{"a": {"bits": 4, "group": 16}}',
    ]
  ) {
    assertThrows(() => recipeFromJson(wrong, "r.json", uniform(base), 64), InvalidArgument, "r.json");
  }
});

Deno.test("groups that do not divide the columns become smaller, and where none does the matrix stays", () => {
  assertEquals(fitting({ bits: 4, groupSize: 128 }, 192), { bits: 4, groupSize: 64 });
  assertEquals(fitting({ bits: 4, groupSize: 64 }, 96), { bits: 4, groupSize: 32 });
  assertEquals(fitting({ bits: 4, groupSize: 32 }, 128), { bits: 4, groupSize: 32 });
  assertEquals(fitting({ bits: 4, groupSize: 64 }, 80), false);
  for (const [bits, group] of [[1, 64], [7, 64], [4, 16], [4, 256], ["4", 64], [undefined, 64]]) {
    assertThrows(() => affineFormat(bits, group, "x"), InvalidArgument, "x");
  }
});
