/** Reads the key–value part of a well-formed GGUF file, no more than these tests need. */

const READERS: Record<
  number,
  [bytes: number, read: (view: DataView, at: number) => number | bigint | boolean]
> = {
  0: [1, (view, at) => view.getUint8(at)],
  1: [1, (view, at) => view.getInt8(at)],
  2: [2, (view, at) => view.getUint16(at, true)],
  3: [2, (view, at) => view.getInt16(at, true)],
  4: [4, (view, at) => view.getUint32(at, true)],
  5: [4, (view, at) => view.getInt32(at, true)],
  6: [4, (view, at) => view.getFloat32(at, true)],
  7: [1, (view, at) => view.getUint8(at) !== 0],
  10: [8, (view, at) => view.getBigUint64(at, true)],
  11: [8, (view, at) => view.getBigInt64(at, true)],
  12: [8, (view, at) => view.getFloat64(at, true)],
};
const STRING = 8, ARRAY = 9;

/** Every metadata entry by key. */
export function readGgufMetadata(bytes: Uint8Array): Map<string, unknown> {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true }); // U+FEFF is a token
  let at = 16; // after magic, version and tensor count
  const u32 = () => view.getUint32((at += 4) - 4, true);
  const u64 = () => Number(view.getBigUint64((at += 8) - 8, true));
  const text = () => {
    const length = u64();
    return decoder.decode(bytes.subarray(at, at += length));
  };
  const value = (type: number): unknown => {
    if (type === STRING) return text();
    if (type === ARRAY) {
      const inner = u32();
      return Array.from({ length: u64() }, () => value(inner));
    }
    const [size, read] = READERS[type];
    at += size;
    return read(view, at - size);
  };
  const entries = new Map<string, unknown>();
  for (let left = u64(); left > 0; left--) {
    const key = text();
    entries.set(key, value(u32()));
  }
  return entries;
}
