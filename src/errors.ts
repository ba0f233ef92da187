/**
 * Every error that markbase throws on purpose. Each class has a `code` that programs can test; each message
 * names the thing, the number and what to do next. A cancelled call rejects with the signal's own reason.
 */

/** Base of all errors of this library. */
export class MarkbaseError extends Error {
  /** Stable identifier in `snake_case`. */
  readonly code: string;
  /** `code` is in `snake_case`; `message` says what to do next. */
  constructor(code: string, message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
    this.code = code;
  }
}

/** A file of a checkpoint is truncated, malformed, inconsistent or of an unknown kind. */
export class CheckpointError extends MarkbaseError {}

/** Tokenizer files are malformed, or an id or text cannot be mapped. */
export class TokenizerError extends MarkbaseError {}

/** The chat template failed: a limit was hit, a filter is undefined, or the template raised. */
export class TemplateError extends MarkbaseError {}

/** An argument has the wrong type, range or combination. */
export class InvalidArgument extends MarkbaseError {
  /** Code `invalid_argument`. */
  constructor(message: string, options?: ErrorOptions) {
    super("invalid_argument", message, options);
  }
}

/** An option that this version does not know; nothing is ignored silently. */
export class UnknownOption extends MarkbaseError {
  /** Code `unknown_option`; `known` lists what there is. */
  constructor(option: string, known: readonly string[]) {
    super("unknown_option", `Unknown option "${option}". Known options: ${known.join(", ")}.`);
  }
}

/** A model, session, device, buffer or pass was used after it was disposed. */
export class Disposed extends MarkbaseError {
  /** Code `disposed`; `what` begins the sentence, as in "A session". */
  constructor(what: string) {
    super("disposed", `${what} was used after it was disposed. Keep it in scope, or create a new one.`);
  }
}

/** The native library reported a failure. */
export class DeviceError extends MarkbaseError {}

/** The native library cannot be found, built, verified or opened. */
export class LibraryError extends MarkbaseError {}

/** A Deno permission is missing; the message has the exact flag. */
export class MissingPermission extends MarkbaseError {
  /** The flag that grants the permission, such as `--allow-read=models`. */
  readonly flag: string;
  /** Code `missing_permission`; `purpose` completes "markbase needs FLAG …". */
  constructor(flag: string, purpose: string, options?: ErrorOptions) {
    super("missing_permission", `markbase needs ${flag} ${purpose}. Run again with ${flag}.`, options);
    this.flag = flag;
  }
}

/** A request does not fit in the memory it may use. */
export class MemoryLimit extends MarkbaseError {
  /** Bytes that the request needs. */
  readonly neededBytes: number;
  /** Bytes that it may use. */
  readonly availableBytes: number;
  /** Code `memory_limit`; `next` says what can be done. */
  constructor(what: string, neededBytes: number, availableBytes: number, next: string) {
    super("memory_limit", `${what} needs ${neededBytes} bytes but ${availableBytes} are available. ${next}`);
    this.neededBytes = neededBytes;
    this.availableBytes = availableBytes;
  }
}

/** A sequence would pass the context length. */
export class ContextFull extends MarkbaseError {
  /** Tokens that the sequence would hold. */
  readonly tokens: number;
  /** Tokens that it may hold. */
  readonly contextLength: number;
  /** Code `context_full`. */
  constructor(tokens: number, contextLength: number) {
    super(
      "context_full",
      `The sequence would hold ${tokens} tokens but the context length is ${contextLength}. ` +
        `Shorten the prompt, lower maxTokens, or load with a larger contextLength.`,
    );
    this.tokens = tokens;
    this.contextLength = contextLength;
  }
}

/** A saved session cannot be restored: its file is damaged, or it belongs to another model. */
export class SessionError extends MarkbaseError {}

/**
 * The network, hub or cache could not deliver a file. Codes: `unreachable`, `unavailable`, `fetch_failed`, `truncated`, `hash_mismatch`, `changed`,
 * `rate_limited`, `invalid_answer`, `unauthorized`, `forbidden`, `gated`, `repository_not_found`, `revision_not_found`, `file_not_found`,
 * `choose_file`, `unsupported_repository`, `unsupported_source`, `unsafe_name`, `not_cached`, `in_use`, `no_space`.
 */
export class HubError extends MarkbaseError {}

/** An image, sound or video cannot be decoded or is outside the limits. */
export class MediaError extends MarkbaseError {}
