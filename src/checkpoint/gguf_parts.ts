/** How GGUF files are named: parts of a model `NAME-00001-of-00003.gguf` and so on. Pure functions over names. */

const PART_NAME = /^(.*)-(\d{5})-of-(\d{5})\.gguf$/;

/** Which part of how many a name says, unchecked; null for a file that is none of several. */
export function ggufPart(name: string): { number: number; count: number } | null {
  const match = PART_NAME.exec(name);
  return match && { number: Number(match[2]), count: Number(match[3]) };
}

/** The names of all parts of the model that `name` belongs to; a file that is none of several is its only part. */
export function ggufParts(name: string): string[] {
  const match = PART_NAME.exec(name);
  if (match === null) return [name];
  const [, stem, , count] = match;
  return Array.from(
    { length: Number(count) },
    (_, i) => `${stem}-${String(i + 1).padStart(5, "0")}-of-${count}.gguf`,
  );
}

/** Whether a file holds the vision and audio parts that other programs keep apart from the model. */
export function isProjector(name: string): boolean {
  return /(^|[/._-])mmproj/i.test(name);
}
