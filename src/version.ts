/** The version that deno.json names; where the library is imported from a URL, that file is not at hand. */
export const VERSION = "0.1.0";
