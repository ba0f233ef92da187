import { assert, assertEquals, assertRejects } from "@std/assert";
import { checkMsl, compilePtx, kernelNames, MslError } from "./generator/compile.ts";
import { fromFileUrl } from "./generator/paths.ts";
import { SHIM } from "./generator/toolchain.ts";

const here = (name: string) => fromFileUrl(new URL(name, import.meta.url));

/** What the check must say of each planted violation in bad/. */
const REPORTS: Record<string, RegExp> = {
  as_cast_away: /cast between address spaces/,
  as_dev_to_thread: /cannot initialize a variable of type/,
  as_missing_kernel_param: /parameter of 'k' has no address space/,
  as_missing_local: /'p' has no address space/,
  as_missing_param: /parameter of 'f' has no address space/,
  as_tg_to_dev: /no matching function for call to 'f'/,
  bad_math: /'__builtin_expf' is not a name of Metal/,
  cast_without_space: /cast to a pointer to 'float4' without an address space/,
  const_dev_write: /read-only variable is not assignable/,
  const_to_dev: /cannot initialize a variable/,
  const_write: /read-only variable is not assignable/,
  cpp17_fold: /C\+\+17 extension/,
  cpp17_ifconstexpr: /C\+\+17 extension/,
  cpp17_structured: /C\+\+17 extension/,
  cpp20_concept: /constant address space/,
  dims_mismatch: /position parameters must all be/,
  dup_index: /duplicate \[\[buffer\(0\)\]\]/,
  fn_pointer: /function pointers/,
  global_mutable: /constant address space/,
  global_static: /constant address space/,
  include_std: /'cmath' file not found/,
  infinity: /finite sentinel/,
  keyword_variable: /'thread' is a keyword/,
  lambda: /lambdas/,
  matrix_constant_source: /no matching function for call to 'simdgroup_load'/,
  matrix_elements: /lane layout/,
  matrix_other_size: /implicit instantiation of undefined template|no matching function/,
  matrix_outside_tile_mma: /through tile_mma/,
  max_mixed: /no matching function for call to 'max'/,
  operator_overload: /no operator overloads/,
  own_helper: /'sm_exp' is not a name of Metal/,
  recursion: /'f' calls itself/,
  return_val: /must return void/,
  static_local: /no static local variables/,
  string_lit: /no string literals/,
  struct_copy: /no matching constructor for initialization of 'P'/,
  struct_method: /structs are plain data/,
  swizzle: /one component at a time/,
  tg_float_atomic: /device memory only/,
  tg_in_block: /outermost block of a kernel/,
  tg_in_function: /outermost block of a kernel/,
  tg_init: /cannot have an initialiser/,
  tg_two_in_one: /one threadgroup variable a statement/,
  two_kernels_one_name: /two kernels are named 'k'/,
  uninitialised: /uninitialized/,
  use_double: /no double/,
  use_goto: /no goto/,
  use_new: /no dynamic allocation/,
  use_std: /no std namespace/,
  use_throw: /no exceptions/,
  use_virtual: /no virtual functions/,
  vec_mixed: /incompatible type 'half4'/,
  vector_cast: /would reinterpret/,
  vla: /variable length arrays/,
};

Deno.test("every planted violation of the language is reported, in its own file and line", async (t) => {
  const files = [...Deno.readDirSync(here("bad"))].map((f) => f.name.replace(".metal", "")).sort();
  assertEquals(files, Object.keys(REPORTS).sort());
  for (const name of files) {
    await t.step(name, async () => {
      const source = Deno.readTextFileSync(here(`bad/${name}.metal`));
      const e = await assertRejects(() => checkMsl(source, { name: `${name}.metal` }), MslError);
      assert(REPORTS[name].test(e.message), `${name}: ${e.message}`);
      assert(e.violations.some((v) => v.file === `${name}.metal` && v.line >= 3), e.message);
    });
  }
});

Deno.test("kernels that keep the rules pass the check", async () => {
  for (const name of ["spike.metal", "features.metal"]) {
    await checkMsl(Deno.readTextFileSync(here(`kernels/${name}`)), { name, includes: [here("kernels")] });
  }
});

Deno.test("bfloat exists from Metal 3.1 on", async () => {
  const source = "#include <metal_stdlib>\nusing namespace metal;\n" +
    "kernel void k(device bfloat* o [[buffer(0)]]) { o[0] = bfloat(1.0f); }\n";
  await checkMsl(source, { version: 310 });
  const e = await assertRejects(() => checkMsl(source, { version: 300 }), MslError);
  assert(e.message.includes("bfloat"), e.message);
});

Deno.test("the kernels of a file are listed by host name, templates by instantiation", async () => {
  const names = await kernelNames(Deno.readTextFileSync(here("kernels/spike.metal")));
  assertEquals(names, [
    "rms_norm",
    "qmv4_f16_r4",
    "qmv4_f32_r4",
    "flash_decode",
    "scale_add_f32",
    "scale_add_f16",
  ]);
});

Deno.test("violations name the lines of the file that a line directive gives", async () => {
  const source = '#include <metal_stdlib>\nusing namespace metal;\n#line 40 "inner.metal"\n' +
    "kernel void k(device float* o [[buffer(0)]]) { double x = 1; o[0] = x; }\n";
  const e = await assertRejects(() => checkMsl(source), MslError);
  assertEquals([e.violations[0].file, e.violations[0].line], ["inner.metal", 40]);
});

Deno.test("the shim declares no names but Metal's and its own", () => {
  const allowed = new Set(Deno.readTextFileSync(here("msl_names.txt")).split(/\s+/).filter(Boolean));
  // The project's own, which the PTX shim replaces: all of them stand in common.h for Metal.
  const common = Deno.readTextFileSync(here("../../shaders/common.h"));
  for (
    const name of [
      "tile_mma",
      "tile_load_four",
      "tile_mma_pair",
      "tiles_of_lanes",
      "lanes_of_tiles",
      "async_copy",
      "end_async_copies",
      "wait_for_async_copies",
      "wait_for_earlier_dispatches",
      "let_next_dispatch_start",
    ]
  ) {
    assert(new RegExp(`static inline \\w+ ${name}\\(`).test(common), `${name} is not in shaders/common.h`);
    allowed.add(name);
  }
  // And those of kernels that are for CUDA alone.
  const spread = Deno.readTextFileSync(here("../../shaders/attention_spread.h"));
  for (
    const name of [
      "resident_threadgroups",
      "cluster_begin",
      "cluster_wait",
      "cluster_send",
      "cluster_receive",
    ]
  ) {
    assert(spread.includes(name), name);
    allowed.add(name);
  }
  const found = new Set<string>();
  for (
    const file of [
      "metal_stdlib",
      "msl_math.h",
      "msl_atomic.h",
      "msl_simd_cpu.h",
      "msl_simd_ptx.h",
      "msl_matrix_cpu.h",
      "msl_matrix_ptx.h",
    ]
  ) {
    const text = Deno.readTextFileSync(SHIM[file.endsWith("_cpu.h") ? 1 : 0] + file).replaceAll(
      /\/\/[^\n]*|[^\n]*__VA_ARGS__[^\n]*/g,
      "",
    );
    for (const m of text.matchAll(/SM_INLINE\s+(?:constexpr\s+)?[\w:<>, ]*?\b(\w+)\s*\(/g)) found.add(m[1]);
    for (const m of text.matchAll(/#define\s+(\w+)/g)) found.add(m[1]);
    for (const m of text.matchAll(/typedef [^;]*?\b(\w+)\s*(?:__attribute__[^;]*)?;/g)) found.add(m[1]);
    for (const m of text.matchAll(/SM_UNARY\((\w+)\)/g)) found.add(m[1]);
  }
  const strange = [...found].filter((n) => !/^(sm_|SM_|__)/.test(n) && n.length > 1 && !allowed.has(n));
  assertEquals(strange, []);
  assert(found.has("simd_sum") && found.has("clamp") && found.has("M_PI_F") && found.has("exp"));
});

Deno.test("PTX has one entry a kernel, with its arguments listed in order", async () => {
  const module = await compilePtx(Deno.readTextFileSync(here("kernels/spike.metal")), {
    constants: { 0: "true" },
  });
  const flash = module.kernels.find((k) => k.host === "flash_decode")!;
  assertEquals(flash.arguments.map((a) => `${a.kind} ${a.index}`), [
    "buffer 0",
    "buffer 1",
    "buffer 2",
    "buffer 3",
    "bytes 4",
    "threadgroup 0",
  ]);
  for (const k of module.kernels) assert(module.text.includes(`.entry ${k.entry}(`), k.entry);
  assert(!module.text.includes("sm_constant_0"));
});

Deno.test("PTX multiplies matrices with tensor cores for 16-bit operands, and leaves unset constants to the host", async () => {
  const source = Deno.readTextFileSync(here("kernels/features.metal"));
  const module = await compilePtx(source, { includes: [here("kernels")] });
  assert(module.text.includes("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32"));
  assert(module.text.includes("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32"));
  assert(/\.const[^;]*sm_constant_0/.test(module.text));
  assert(!/\.extern \.func/.test(module.text), "an unresolved function is left");
});
