/** The C++ compiler: which one, whether it is recent enough, and the flags of each instruction set. */
import { LibraryError } from "../src/errors.ts";
import { optionalEnv, requirePermission } from "../ffi/permissions.ts";

/** Flags of every unit. `MB_ISA` units add their own. */
export const COMMON_FLAGS: readonly string[] = [
  "-std=c++17",
  "-O3",
  "-fPIC",
  "-fvisibility=hidden",
  "-fvisibility-inlines-hidden",
  "-pthread",
  // A product and a sum become one fused operation only where a kernel says so: exact mode promises equal bits.
  "-ffp-contract=off",
];

/** An instruction set that a unit can be compiled for. */
export interface Isa {
  /** absent: every architecture */
  arch?: typeof Deno.build.arch;
  /** beyond the common ones */
  flags: readonly string[];
}

const AVX2 = ["-mavx2", "-mfma", "-mf16c"];
const AVX512 = [
  ...AVX2,
  "-mavx512f",
  "-mavx512bw",
  "-mavx512vl",
  "-mavx512dq",
  "-mavx512vnni",
  "-mprefer-vector-width=512",
];

/** Instruction sets by the name that `MB_ISA` gets. */
export const ISAS: Readonly<Record<string, Isa>> = {
  scalar: { flags: ["-O2"] }, // -O3 takes three times as long over loops that stand for vectors
  avx2: { arch: "x86_64", flags: AVX2 },
  avx512: { arch: "x86_64", flags: AVX512 },
  amx: { arch: "x86_64", flags: [...AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"] },
  neon: { arch: "aarch64", flags: [] },
  neon_dotprod: { arch: "aarch64", flags: ["-march=armv8.2-a+dotprod"] },
};

/** A compiler that can build the library. */
export interface Compiler {
  /** command or path */
  command: string;
  /** such as "g++ 12.2.0" */
  version: string;
}

/** What to install, as one sentence. */
function installHint(): string {
  switch (Deno.build.os) {
    case "darwin":
      return "Install the command line tools with `xcode-select --install`.";
    case "linux":
      return "Install one, for example `sudo apt install g++` (Debian, Ubuntu), `sudo dnf install gcc-c++` (Fedora), " +
        "`sudo pacman -S gcc` (Arch) or `apk add g++` (Alpine).";
    default:
      return `markbase builds on Linux and macOS; on ${Deno.build.os} name a ready library with MARKBASE_DYLIB.`;
  }
}

/** The command that compiles C++: `CXX`, else `c++`. */
export async function compilerCommand(): Promise<string> {
  return await optionalEnv("CXX") ?? "c++";
}

/**
 * Finds the compiler and checks its version. Throws `LibraryError` ("no_compiler", "old_compiler") or
 * `MissingPermission`.
 */
export async function findCompiler(command: string): Promise<Compiler> {
  await requirePermission(
    { name: "run", command },
    `to compile its native library with the C++ compiler "${command}", which must be installed (${installHint()})`,
  );
  const macros = await predefinedMacros(command);
  const number = (name: string) =>
    Number(macros.match(new RegExp(`^#define ${name} (\\d+)`, "m"))?.[1] ?? NaN);
  const clang = number("__clang_major__");
  const [name, major, minor, patch, least] = Number.isNaN(clang)
    ? ["g++", number("__GNUC__"), number("__GNUC_MINOR__"), number("__GNUC_PATCHLEVEL__"), 12]
    : ["clang++", clang, number("__clang_minor__"), number("__clang_patchlevel__"), 15];
  const version = `${name} ${major}.${minor}.${patch}`;
  if (Number.isNaN(major)) {
    throw new LibraryError("no_compiler", `"${command}" is neither g++ nor clang++. ${installHint()}`);
  }
  if (major < least) {
    throw new LibraryError(
      "old_compiler",
      `"${command}" is ${version}; markbase needs g++ 12 or clang++ 15 at least. ${installHint()} ` +
        "Or set CXX to a newer compiler.",
    );
  }
  return { command, version };
}

async function predefinedMacros(command: string): Promise<string> {
  const arguments_ = ["-dM", "-E", "-x", "c++", "/dev/null"];
  try {
    const result = await new Deno.Command(command, { args: arguments_, stdin: "null", stderr: "piped" })
      .output();
    return new TextDecoder().decode(result.stdout);
  } catch (cause) {
    if (!(cause instanceof Deno.errors.NotFound)) throw cause;
    throw new LibraryError(
      "no_compiler",
      `There is no C++ compiler named "${command}". ${installHint()} Or set CXX to one, or name a ready library ` +
        "with MARKBASE_DYLIB.",
      { cause },
    );
  }
}
