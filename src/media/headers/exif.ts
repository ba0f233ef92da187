/** The orientation that Exif data ask for. */
import { Bytes, Truncated } from "./bytes.ts";

const ORIENTATION_TAG = 0x0112;
const SHORT = 3;

/**
 * Orientation 1–8 from a TIFF header and its first directory: 1 as stored, 2 mirrored, 3 turned by 180°, 4 flipped, 5 transposed,
 * 6 to be turned right, 7 transversed, 8 to be turned left. Damaged or absent data mean 1.
 */
export function exifOrientation(bytes: Uint8Array): number {
  try {
    const data = new Bytes(bytes);
    const order = data.ascii(0, 2);
    if (order !== "II" && order !== "MM") return 1;
    const little = order === "II";
    if (data.u16(2, little) !== 42) return 1;
    const directory = data.u32(4, little);
    const entries = data.u16(directory, little);
    for (let i = 0; i < entries; i++) {
      const at = directory + 2 + 12 * i;
      if (data.u16(at, little) !== ORIENTATION_TAG || data.u16(at + 2, little) !== SHORT) continue;
      const value = data.u16(at + 8, little);
      return value >= 1 && value <= 8 ? value : 1;
    }
  } catch (error) {
    if (!(error instanceof Truncated)) throw error;
  }
  return 1;
}
