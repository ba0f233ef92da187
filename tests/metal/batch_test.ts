/** Several sequences at once on software Metal: mixed forwards, drafts and prefixes give what each request alone gives. */
import { fixtureModel } from "../support/models.ts";
import { EXACT, loadMetal } from "./load.ts";
import { checkTogether } from "./together.ts";

const TARGET = fixtureModel("e2b"), DRAFTER = fixtureModel("assistant-e2b");
const ignore = Deno.build.os !== "linux" || TARGET === null || DRAFTER === null;

Deno.test("e2b on software Metal answers requests at once, with and without drafts, as each alone", {
  ignore,
}, async () => {
  await using model = await loadMetal(TARGET!, { ...EXACT, drafter: DRAFTER! });
  await checkTogether(model);
});
