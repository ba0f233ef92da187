/** Which cases the self-check takes, and that they are loaded only for it. */
import { readClips } from "../../src/checkpoint/towers.ts";
import { layOutWeights } from "../../src/engine/weights.ts";
import { FIRST_TOWER_WEIGHTS } from "../../src/schedule/tower.ts";
import { towerPlan } from "../../src/schedule/tower_plan.ts";
import { assert, assertEquals } from "@std/assert";
import { allCases } from "../../src/conformance/cases.ts";
import { select } from "../../src/conformance/select.ts";
import { variantsOf } from "../../src/schedule/variants.ts";
import { fixture } from "../oracle/model.ts";
import { fixtureModel, MODELS, TINY } from "../support/models.ts";

const cases = allCases();

Deno.test("there is a case of every variant that a model needs, and few cases have them all", async () => {
  const folders = [TINY];
  for (const name of [...MODELS.small, ...MODELS.large, ...MODELS.experts]) {
    const folder = fixtureModel(name);
    if (folder) folders.push(folder);
    else console.log(`  skipped: the fixture ${name} is absent`);
  }
  for (const folder of folders) {
    const model = await fixture(folder);
    for (const [fuse, kvFormat] of [[true, "f32"], [false, "f32"], [true, "q8"], [false, "q8"]] as const) {
      const plans = (["prefill", "decode"] as const).map((variant) =>
        model.plan({ variant, fuse, kvFormat, exact: true })
      );
      const variants = variantsOf(plans.flatMap((plan) => plan.ops));
      const chosen = select(cases, variants);
      assertEquals(chosen.missing, [], `${folder} ${kvFormat}`);
      assert(chosen.cases.length <= 60, `${folder}: ${chosen.cases.length} cases`);
      const work = chosen.cases.reduce((sum, c) => sum + c.work, 0);
      assert(work < 3e7, `${folder}: ${work} multiplications`);
      const covered = new Set(chosen.cases.flatMap((c) => c.variants));
      for (const variant of variants) assert(covered.has(variant), variant);
    }
  }
});

Deno.test("the cases are about every variant that towers need, and prompts with media", async () => {
  for (const name of ["e2b-mm-clipped", "e2b-mm-unclipped", "31b-mm", "12b"]) {
    const folder = fixtureModel(name);
    if (folder === null) {
      console.log(`  skipped: the fixture ${name} is absent`);
      continue;
    }
    const model = await fixture(folder);
    const { config, files } = model.checkpoint;
    const towers = model.checkpoint.towers();
    const places = {
      ...layOutWeights(towers, files, FIRST_TOWER_WEIGHTS, 1),
      clips: await readClips(files, towers),
    };
    const options = { limits: { rows: 32, out_rows: 16 }, exact: true };
    const ops = (["vision", "audio"] as const).flatMap((part) =>
      towers[part] === null ? [] : towerPlan(part, config, towers, places, options).ops
    );
    const text = model.plan({ variant: "prefill", exact: true, softRows: 8 }).ops;
    const variants = variantsOf([...ops, ...text]);
    assert(variants.has("embed soft tokens") && [...variants].some((v) => v.includes("add_positions")));
    assertEquals(select(cases, variants).missing, [], name);
  }
});

Deno.test("every case is about something, and a case is chosen once", () => {
  for (const c of cases) assert(c.variants.length > 0 && c.work > 0, `${c.op} ${c.name}`);
  const { cases: chosen, missing } = select(cases, cases.flatMap((c) => c.variants));
  assertEquals(missing, []);
  assertEquals(new Set(chosen).size, chosen.length);
  // Formats that are rare have one case for each of their variants.
  const several = cases.filter((c) => !/(mxfp|nvfp|q\d_|iq4)/.test(c.name));
  const few = chosen.filter((c) => several.includes(c));
  assert(few.length < several.length / 4, `${few.length} of ${several.length}`);
});

Deno.test("a variant of no case is missing, not forgotten", () => {
  assertEquals(select(cases, ["gather", "no such thing"]).missing, ["no such thing"]);
});

Deno.test("importing mod.ts loads neither cases nor references", async () => {
  const root = new URL("../../", import.meta.url);
  const { stdout } = await new Deno.Command(Deno.execPath(), {
    args: ["info", "--json", new URL("mod.ts", root).href],
    stderr: "inherit",
  }).output();
  interface Dependency {
    code?: { specifier: string };
    isDynamic?: boolean;
  }
  const { modules }: { modules: { specifier: string; dependencies?: Dependency[] }[] } = JSON.parse(
    new TextDecoder().decode(stdout),
  );
  const bySpecifier = new Map(modules.map((module) => [module.specifier, module]));
  const reach = (dynamic: boolean) => {
    const seen = new Set([new URL("mod.ts", root).href]);
    for (const specifier of seen) {
      for (const { code, isDynamic } of bySpecifier.get(specifier)?.dependencies ?? []) {
        if (code && (dynamic || !isDynamic)) seen.add(code.specifier);
      }
    }
    return [...seen].filter((specifier) => specifier.includes("/src/conformance/"));
  };
  assertEquals(reach(false), []);
  assert(reach(true).some((specifier) => specifier.endsWith("/oracle/run.ts")));
});
