import { assert, assertEquals, assertRejects, assertStringIncludes, assertThrows } from "@std/assert";
import { fixedBytes, readText, size, utf8 } from "../../ffi/call.ts";
import { Device, type DeviceKind } from "../../ffi/device.ts";
import { checkDenoVersion, openLibrary } from "../../ffi/library.ts";
import { ABI_VERSION } from "../../ffi/symbols.ts";
import { DeviceError, InvalidArgument, LibraryError } from "../../src/errors.ts";

const NUMBERS = [0n, 1n, 2n ** 31n, 2n ** 32n + 1n, 2n ** 53n + 1n, 2n ** 63n - 1n];
const none = new Uint8Array(0);

Deno.test("64-bit values cross the boundary unchanged, in both directions of a blocking call", async () => {
  const { symbols } = await openLibrary();
  const out = new BigUint64Array(2);
  for (const u of [...NUMBERS, 2n ** 63n, 2n ** 64n - 1n]) {
    assertEquals(symbols.mb_echo(u, 0n, out, none, 0n), 0);
    assertEquals(out[0], u);
  }
  for (const i of [...NUMBERS, -1n, -(2n ** 31n), -(2n ** 53n) - 1n, -(2n ** 63n)]) {
    assertEquals(symbols.mb_echo(0n, i, out, none, 0n), 0);
    assertEquals(new BigInt64Array(out.buffer)[1], i);
  }
});

Deno.test("64-bit values cross the boundary unchanged in overlapping nonblocking calls", async () => {
  const { symbols } = await openLibrary();
  await Promise.all([...NUMBERS, 2n ** 63n, 2n ** 64n - 1n].map(async (u) => {
    const out = new BigUint64Array(2);
    assertEquals(await symbols.mb_echo_async(u, -1n, out, none, 0n), 0);
    assertEquals([...out], [u, 2n ** 64n - 1n]);
  }));
});

Deno.test("a call that fails returns a status and a text, and takes no room for it as well", async () => {
  const { symbols } = await openLibrary();
  const text = new Uint8Array(100).fill(7);
  assertEquals(symbols.mb_echo(1n, 1n, null, text, 100n), 1);
  assertEquals(new TextDecoder().decode(text.subarray(0, text.indexOf(0))), "out is null");
  assertEquals(symbols.mb_echo(1n, 1n, null, null, 0n), 1);
  assertEquals(symbols.mb_echo(1n, 1n, null, null, 100n), 1, "a null text is never written");
  const short = new Uint8Array(8).fill(7);
  assertEquals(symbols.mb_echo(1n, 1n, null, short, 5n), 1);
  assertEquals([...short], [...new TextEncoder().encode("out "), 0, 7, 7, 7]);
});

Deno.test("an error text is cut between characters", async () => {
  const { symbols } = await openLibrary();
  const kind = new TextEncoder().encode("€€€");
  const full = new Uint8Array(200);
  const out = new BigUint64Array(1);
  const open = (err: Uint8Array<ArrayBuffer>, cap: number) =>
    symbols.mb_device_open(kind, BigInt(kind.length), none, 0n, out, err, BigInt(cap));
  assertEquals(open(full, 200), 7);
  const length = full.indexOf(0);
  for (let cap = 1; cap <= length; cap++) {
    const err = new Uint8Array(200).fill(0x41);
    assertEquals(open(err, cap), 7);
    const end = err.indexOf(0);
    assert(end < cap && end >= cap - 3, `cap ${cap}: ${end}`);
    new TextDecoder("utf-8", { fatal: true }).decode(err.subarray(0, end));
    assertEquals(err[cap], 0x41, "nothing is written behind the room");
  }
});

Deno.test("strings of any content reach the library whole", async () => {
  for (const name of ["", "\0", "a\0b", "é", "日本語", "x".repeat(1000)]) {
    const error = await assertRejects(() => Device.open(name as DeviceKind), DeviceError);
    assertEquals(error.code, "no_device");
    if (!name.includes("\0")) assertStringIncludes(error.message, `"${name}"`);
  }
  const long = "é".repeat(5 << 20); // 10 MiB
  const error = await assertRejects(() => Device.open(long as DeviceKind), DeviceError);
  assertStringIncludes(error.message, '"ééé');
  assert(error.message.length < 1024 && !error.message.includes("\ufffd"), "cut between characters");
});

Deno.test("a lone surrogate is refused instead of replaced", async () => {
  await assertRejects(() => Device.open("\ud800" as DeviceKind), InvalidArgument, "lone surrogate");
  assertThrows(() => utf8("a\udfff", "x"), InvalidArgument);
  assertEquals(utf8("😀", "x").length, 4);
});

Deno.test("the library describes its build, however little room there is at first", async () => {
  const { symbols } = await openLibrary();
  assertEquals(symbols.mb_abi_version(), ABI_VERSION);
  const info = JSON.parse(readText((...room) => symbols.mb_library_info(...room)));
  assertEquals(info.abiVersion, ABI_VERSION);
  assert(info.devices.includes("cpu") && info.levels.includes("scalar"), JSON.stringify(info));
  const length = new BigUint64Array(1);
  assertEquals(symbols.mb_library_info(null, 0n, length, none, 0n), 1);
  const text = new Uint8Array(Number(length[0]) + 1);
  assertEquals(symbols.mb_library_info(text, length[0], length, none, 0n), 1, "no room for the terminator");
  assertEquals(symbols.mb_library_info(text, length[0] + 1n, length, none, 0n), 0);
});

Deno.test("resizable, shared and detached buffers are refused before a call", () => {
  const resizable = new Uint8Array(new ArrayBuffer(8, { maxByteLength: 16 }));
  assertThrows(() => fixedBytes(resizable, "The input"), InvalidArgument, "resizable");
  assertThrows(
    () => fixedBytes(new Uint8Array(new SharedArrayBuffer(8)), "The input"),
    InvalidArgument,
    "shared",
  );
  const detached = new Uint8Array(8);
  structuredClone(detached.buffer, { transfer: [detached.buffer] });
  assertThrows(() => fixedBytes(detached, "The input"), InvalidArgument, "detached");
  const fixed = new Uint8Array(8);
  assertEquals(fixedBytes(fixed, "The input"), fixed);
});

Deno.test("sizes must be whole numbers that a number can hold", () => {
  assertEquals(size(2 ** 53 - 1, "x"), 2n ** 53n - 1n);
  for (const wrong of [-1, 1.5, NaN, Infinity, 2 ** 53]) {
    assertThrows(() => size(wrong, "x"), InvalidArgument);
  }
});

Deno.test("a Deno that may free buffers too early is refused", () => {
  for (const version of ["2.7.6", "2.7.10", "2.9.6", "3.0.0", "2.8.0-rc.1"]) checkDenoVersion(version);
  for (const version of ["2.7.5", "2.6.10", "1.46.3"]) {
    const error = assertThrows(() => checkDenoVersion(version), LibraryError, `Deno ${version}`);
    assertEquals(error.code, "old_deno");
  }
});
