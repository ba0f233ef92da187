import { assertEquals } from "@std/assert";
import { visible } from "../../src/cli/terminal.ts";

Deno.test("text of a model cannot steer a terminal: control characters are shown as pictures of themselves", () => {
  assertEquals(visible("one\ttwo\nthree, é 日本 😊"), "one\ttwo\nthree, é 日本 😊");
  assertEquals(visible("\x1b]52;c;aGk=\x07"), "␛]52;c;aGk=␇"); // which would write to the clipboard
  assertEquals(visible("safe\rfalse"), "safe␍false"); // which would write over the line
  assertEquals(visible("\x00\x7f\x9b2J"), "␀␡\ufffd2J");
});
