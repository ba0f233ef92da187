/** The shipped model with pictures and sounds on the CPU device. */
import { loadWith } from "../../src/engine/load.ts";
import { EXACT } from "../support/calls.ts";
import { testTiny } from "./tiny.ts";

testTiny("the CPU", (folder, internals) => loadWith(folder, EXACT, { checkFinite: true, ...internals }));
