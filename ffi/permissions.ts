/** Asks for a Deno permission before it is needed, so that a missing one is named with its exact flag. */
import { MissingPermission } from "../src/errors.ts";

/**
 * Returns when the permission is granted. Where Deno would prompt and standard input is a terminal, the user is asked;
 * otherwise throws `MissingPermission` with the flag that grants it. `purpose` completes "markbase needs --allow-… ".
 */
export async function requirePermission(
  descriptor: Deno.PermissionDescriptor,
  purpose: string,
): Promise<void> {
  let { state } = await Deno.permissions.query(descriptor);
  if (state === "prompt" && Deno.stdin.isTerminal()) {
    state = (await Deno.permissions.request(descriptor)).state;
  }
  if (state !== "granted") throw new MissingPermission(permissionFlag(descriptor), purpose);
}

/** The command line flag that grants a permission. */
export function permissionFlag(descriptor: Deno.PermissionDescriptor): string {
  return `--allow-${descriptor.name}${value(descriptor)}`;
}

function value(descriptor: Deno.PermissionDescriptor): string {
  switch (descriptor.name) {
    case "read":
    case "write":
    case "ffi":
      return descriptor.path === undefined ? "" : `=${descriptor.path}`;
    case "run":
      return descriptor.command === undefined ? "" : `=${descriptor.command}`;
    case "net":
    case "import":
      return descriptor.host === undefined ? "" : `=${descriptor.host}`;
    case "env":
      return descriptor.variable === undefined ? "" : `=${descriptor.variable}`;
    case "sys":
      return descriptor.kind === undefined ? "" : `=${descriptor.kind}`;
  }
}

/** The value of an environment variable, or undefined where it is unset or may not be read. */
export async function optionalEnv(variable: string): Promise<string | undefined> {
  const { state } = await Deno.permissions.query({ name: "env", variable });
  return state === "granted" ? Deno.env.get(variable) || undefined : undefined;
}
