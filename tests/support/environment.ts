/** The environment of this process for a while. Every test file of a run shares it, and processes that tests start inherit it. */

/** Does `work` with variables set, or unset where the value is undefined, and puts them back as they were. */
export async function withEnvironment<T>(
  values: Readonly<Record<string, string | undefined>>,
  work: () => T | Promise<T>,
): Promise<T> {
  const before = Object.keys(values).map((name) => [name, Deno.env.get(name)] as const);
  apply(Object.entries(values));
  try {
    return await work();
  } finally {
    apply(before);
  }
}

function apply(values: Iterable<readonly [string, string | undefined]>): void {
  for (const [name, value] of values) {
    if (value === undefined) Deno.env.delete(name);
    else Deno.env.set(name, value);
  }
}
