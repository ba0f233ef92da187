/**
 * The CPU device's AMX level on CPUs that lack AMX, with its tile registers in software: what it does differently from AVX-512
 * meets the conformance table and is the same in any batch.
 */
import { assert } from "@std/assert";
import { buildLibrary } from "../../dylib/build.ts";
import { lackingLevels, LEVELS } from "./levels.ts";

const lacking = await lackingLevels();
const flags = await Deno.readTextFile("/proc/cpuinfo").catch(() => "");
const canRun = LEVELS.includes("avx512") && !lacking.has("avx512") && / avx512_bf16\b/.test(flags);

Deno.test({
  name: "prefill on AMX's tiles, in software, agrees with the oracle and is the same in any batch",
  // Where there is AMX, the other tests take it as a level among others.
  ignore: !canRun || LEVELS.includes("amx"),
  async fn() {
    const software = ["-DMB_TILES_IN_SOFTWARE=1"];
    const { path } = await buildLibrary({
      unitFlags: { "cpu/features.cpp": software, "cpu/isa/amx.cpp": software },
    });
    const here = (name: string) => decodeURIComponent(new URL(name, import.meta.url).pathname);
    const { success, stdout, stderr } = await new Deno.Command(Deno.execPath(), {
      args: ["test", "-A", "--no-check", "--filter", "/(linear|expert).* on cpu amx$/"]
        .concat(here("cpu_test.ts"), here("invariance_test.ts")),
      env: { MARKBASE_DYLIB: path, NO_COLOR: "1" },
    }).output();
    const text = new TextDecoder().decode(stdout);
    assert(success, text.slice(-4000) + new TextDecoder().decode(stderr).slice(-4000));
    assert(Number(text.match(/(\d+) passed/)?.[1]) >= 11, text.slice(-1000));
  },
});
