/** The library over software Metal is built beside the usual one and changes nothing for it. */
import { assert, assertEquals } from "@std/assert";
import { buildLibrary } from "../../dylib/build.ts";
import { buildSoftMetalLibrary } from "./task.ts";

Deno.test({
  name:
    "building over software Metal leaves the compiler of later builds, and of processes to come, as it was",
  ignore: Deno.build.os !== "linux",
  async fn() {
    const [compiler, usual] = [Deno.env.get("CXX"), (await buildLibrary()).path];
    const soft = await buildSoftMetalLibrary();
    assertEquals(Deno.env.get("CXX"), compiler);
    assert(soft.compiler.startsWith("clang++"));
    assert(soft.path !== usual);
    assertEquals((await buildLibrary()).path, usual);
  },
});
