/** Warnings of replies and renders: each ignored input, truncation, repair or fallback, as a value. */

/** Something that did not stop the work but that the caller should see. */
export interface Warning {
  /** Stable identifier in `snake_case`. */
  code: string;
  /** One sentence that names the thing and what was done with it. */
  message: string;
}
