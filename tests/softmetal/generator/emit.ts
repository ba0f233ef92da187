/** C++ for the software GPU and for the check: the text of the kernels with entry points of their own. */
import { callee, KEYWORDS, rewritten } from "../../../dylib/ptx/rewrite.ts";
import type { Unit } from "../../../dylib/ptx/parse.ts";

export type { Unit };

/** `cpu` runs in the software GPU, `check` is only type-checked with address spaces. */
export type Target = "cpu" | "check";

/** Spelled out where messages and the syntax tree are read: a macro would hide the source line. */
const CHECKED: Record<string, string> = {
  kernel: "",
  device: "__attribute__((address_space(1)))",
  constant: "const __attribute__((address_space(2)))",
  threadgroup: "__attribute__((address_space(3)))",
  thread: "",
};

/** The C++ text of `unit`. */
export function emit(unit: Unit, target: Target): string {
  const keywords = target === "check" ? CHECKED : KEYWORDS;
  // The check knows no values of function constants; `is_function_constant_defined` is false to it.
  const out = rewritten(unit, `SM_${target.toUpperCase()}`, target === "check" ? {} : undefined, keywords);
  if (target === "check") unit.kernels.forEach((k, n) => out.push(`auto* sm_check_${n} = &${callee(k)};\n`));
  else cpuEntries(unit, out);
  return out.join("");
}

const KIND = { buffer: 0, threadgroup: 1, builtin: 2, unknown: 3 };

function cpuEntries(unit: Unit, out: string[]): void {
  out.push(`#include "entry_cpu.h"\n`);
  unit.kernels.forEach((k, n) => {
    const fn = `&${callee(k)}`;
    const type = `decltype(${fn})`;
    const args = k.params.map((p, a) =>
      `sm_argument<SmParam<${type}, ${a}>::type>(c, ${KIND[p.kind]}, ${p.index})`
    );
    out.push(`extern "C" void sm_entry_${n}(SmContext* c) { ${callee(k)}(${args.join(", ")}); }\n`);
    const params = k.params.map((p, a) => {
      const flags = (p.readOnly ? 1 : 0) | (p.reference ? 2 : 0) | (p.condition === null ? 0 : 4) |
        (p.space === "constant" ? 8 : 0);
      const pointee = `SmPointee<SmParam<${type}, ${a}>::type>`;
      const condition = unit.functionConstants.find((c) => c.name === p.condition)?.index ?? -1;
      return `{${
        KIND[p.kind]
      }, ${p.index}, ${flags}, ${pointee}::size, ${pointee}::align, ${condition}, "${p.name}"}`;
    });
    out.push(
      `static const SmParamInfo sm_params_${n}[] = {${[...params, "{-1, 0, 0, 0, 0, -1, 0}"].join(", ")}};\n`,
    );
  });
  const kernels = unit.kernels.map((k, n) =>
    `{"${k.host}", sm_entry_${n}, sm_params_${n}, ${k.maxThreads}, ${k.constantMask}u}`
  );
  out.push(`SM_EXPORT const SmKernel sm_kernels[] = {${[...kernels, "{0, 0, 0, 0, 0}"].join(",\n ")}};\n`);
  const constants = unit.functionConstants.map((c) =>
    `{"${c.name}", ${c.index}, &sm_constant_${c.index}, sizeof(sm_constant_${c.index}), &sm_defined_${c.index}}`
  );
  out.push(
    `SM_EXPORT const SmConstant sm_constants[] = {${[...constants, "{0, 0, 0, 0, 0}"].join(",\n ")}};\n`,
  );
}
