import { assert, assertEquals, assertRejects, assertThrows } from "@std/assert";
import { Device } from "../../ffi/device.ts";
import { DeviceError, InvalidArgument } from "../../src/errors.ts";

Deno.test("a new buffer is zero and keeps what is written, filled and copied", async () => {
  using device = await Device.open("cpu");
  using a = device.createBuffer(100);
  using b = device.createBuffer(50);
  assertEquals([a.size, a.writable], [100, true]);
  const all = new Uint8Array(100).fill(9);
  a.read(0, all);
  assertEquals(all, new Uint8Array(100));
  a.write(10, new Float32Array([1, 2]));
  const two = new Float32Array(2);
  await a.readAsync(10, two);
  assertEquals([...two], [1, 2]);
  await b.writeAsync(0, new Uint8Array(50).fill(3));
  a.copy(50, b, 0, 25);
  a.copy(0, a, 50, 50);
  a.fill(1, 2, 255);
  a.read(0, all);
  assertEquals([...all.subarray(0, 5)], [3, 255, 255, 3, 3]);
  assertEquals([all[24], all[25], all[74], all[75]], [3, 0, 3, 0]);
});

Deno.test("ranges outside a buffer are refused with the numbers, also where offset + length overflows", async () => {
  using device = await Device.open("cpu");
  using a = device.createBuffer(100);
  using b = device.createBuffer(10);
  const four = new Uint8Array(4);
  for (const offset of [97, 100, 101, 2 ** 53 - 1]) {
    assertThrows(() => a.read(offset, four), InvalidArgument, `[${offset}, ${offset} + 4)`);
    assertThrows(() => a.write(offset, four), InvalidArgument, "100 bytes");
    assertThrows(() => a.fill(offset, 4, 0), InvalidArgument);
    assertThrows(() => a.copy(offset, b, 0, 4), InvalidArgument);
    await assertRejects(() => a.readAsync(offset, four), InvalidArgument);
    await assertRejects(() => a.writeAsync(offset, four), InvalidArgument);
  }
  assertThrows(() => a.copy(0, b, 8, 4), InvalidArgument, "source of 10 bytes");
  assertThrows(() => a.fill(0, 2 ** 53 - 1, 0), InvalidArgument);
  assertThrows(() => a.fill(0, 1, 256), InvalidArgument, "256");
  assertThrows(() => a.copy(0, a, 2, 3), InvalidArgument, "overlap");
  assertThrows(() => a.read(-1, four), InvalidArgument);
  assertThrows(() => a.read(0.5, four), InvalidArgument);
  a.read(100, new Uint8Array(0)); // nothing at the end is inside
});

Deno.test("buffers of no bytes and of impossible sizes are refused", async () => {
  using device = await Device.open("cpu");
  assertThrows(() => device.createBuffer(0), InvalidArgument);
  const error = assertThrows(() => device.createBuffer(2 ** 53 - 1), DeviceError);
  assertEquals(error.code, "out_of_memory");
  assertEquals(device.memory().liveBuffers, 0);
});

Deno.test("buffers of different devices cannot be mixed", async () => {
  using one = await Device.open("cpu");
  using two = await Device.open("cpu");
  using a = one.createBuffer(10);
  using b = two.createBuffer(10);
  assertThrows(() => a.copy(0, b, 0, 1), InvalidArgument, "different devices");
  await assertRejects(() => one.compile(new Uint8Array(48), [b]), InvalidArgument, "another device");
});

Deno.test("a part of a file is mapped at any offset, read-only", async () => {
  using device = await Device.open("cpu");
  const path = await Deno.makeTempFile();
  const bytes = Uint8Array.from({ length: 10000 }, (_, i) => i * 7 % 256);
  await Deno.writeFile(path, bytes);
  for (const [offset, length] of [[0, 10000], [1, 9999], [4097, 100], [9999, 1]]) {
    using buffer = await device.mapFile(path, offset, length);
    assertEquals([buffer.size, buffer.writable, device.memory().mapped], [length, false, length]);
    const found = new Uint8Array(length);
    buffer.read(0, found);
    assertEquals(found, bytes.subarray(offset, offset + length));
    assertThrows(() => buffer.write(0, found), InvalidArgument, "read-only");
    assertThrows(() => buffer.fill(0, 1, 0), InvalidArgument, "read-only");
  }
  assertEquals(device.memory().mapped, 0);
  for (const [offset, length] of [[0, 10001], [10000, 1], [9999, 2], [2 ** 53 - 1, 1]]) {
    const error = await assertRejects(() => device.mapFile(path, offset, length), DeviceError);
    assertEquals(error.code, "io");
  }
  await assertRejects(() => device.mapFile(path, 0, 0), InvalidArgument);
  await Deno.remove(path);
});

Deno.test("a file that is missing, a folder or oddly named is an error that names it", async () => {
  using device = await Device.open("cpu");
  for (const path of ["/no/such/file", "/", "/no/such/é日本"]) {
    const error = await assertRejects(() => device.mapFile(path, 0, 1), DeviceError);
    assertEquals(error.code, "io");
    assert(error.message.includes(path), error.message);
  }
  const pipe = `${await Deno.makeTempDir()}/pipe`;
  await new Deno.Command("mkfifo", { args: [pipe] }).output();
  const error = await assertRejects(() => device.mapFile(pipe, 0, 1), DeviceError);
  assert(error.message.includes("is not a regular file"), "it is not waited for");
  await assertRejects(() => device.mapFile("a\0b", 0, 1));
  await assertRejects(() => device.mapFile("", 0, 1));
});
