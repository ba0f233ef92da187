/**
 * Takes the PTX of a kernel family apart into one text for each kernel, so that the driver compiles those that a model uses and
 * no others, several at once. The first line of each text tells the host what the kernel takes (dylib/cuda/kernels.cpp reads it).
 */
import type { PtxModule } from "./compile.ts";
import type { PtxKernel } from "./entries.ts";

/** The texts by host name. Throws Error where the PTX has what no kernel file of this project makes. */
export function kernelTexts(module: PtxModule): Map<string, string> {
  const { head, declarations, entries } = itemsOf(module.text);
  return new Map(module.kernels.map((kernel) => {
    const body = entries.get(kernel.entry);
    if (body === undefined) throw new Error(`the PTX has no entry ${kernel.entry}`);
    const used = usedBy(body, declarations);
    // Registers are given out by it. Clang knows the attribute for it in CUDA sources only. Of large threadgroups the
    // assembler would keep room for two on a core, and spill.
    const told = (what: string) => new RegExp(`// threadgroups of a ${what}: (\\d+)`).exec(body)?.[1];
    const resident = told("core") ?? (kernel.maxThreads > 256 ? "1" : undefined);
    const cluster = told("cluster");
    const bounds = [
      ...(kernel.maxThreads === 0 ? [] : [`.maxntid ${kernel.maxThreads}, 1, 1`]),
      ...(resident === undefined ? [] : [`.minnctapersm ${resident}`]),
      ...(cluster === undefined ? [] : [`.explicitcluster`, `.reqnctapercluster ${cluster}, 1, 1`]),
    ];
    const bounded = body.replace(/^\{$/m, [...bounds, "{"].join("\n"));
    return [kernel.host, [firstLine(kernel, body), head, ...used, bounded].join("\n") + "\n"];
  }));
}

interface Items {
  /** version, target and address size */ head: string;
  /** variables of the module, by name */ declarations: Map<string, string>;
  /** from `.visible .entry` to the closing brace, by name */ entries: Map<string, string>;
}

function itemsOf(text: string): Items {
  const head: string[] = [];
  const declarations = new Map<string, string>();
  const entries = new Map<string, string>();
  const lines = text.split("\n");
  for (let i = 0; i < lines.length; i++) {
    const line = lines[i];
    if (/^\s*(\/\/.*)?$/.test(line)) continue;
    if (/^\.(version|target|address_size)\b/.test(line)) head.push(line);
    else if (/\.func\b/.test(line)) throw new Error(`the PTX has a function that was not inlined: ${line}`);
    else if (/\.entry\b/.test(line)) {
      const first = i;
      while (i < lines.length && !lines[i].startsWith("}")) i++;
      entries.set(/\.entry\s+(\w+)/.exec(line)![1], [...lines.slice(first, i), "}"].join("\n"));
    } else {
      const first = i;
      while (i < lines.length && !lines[i].trimEnd().endsWith(";")) i++;
      const declaration = lines.slice(first, i + 1).join("\n");
      const name = /([\w$]+)(\[\d*\])*\s*(=|;)/.exec(declaration)?.[1];
      if (name === undefined) throw new Error(`the PTX has a line that is not understood: ${line}`);
      declarations.set(name, declaration);
    }
  }
  return { head: head.join("\n"), declarations, entries };
}

/** The declarations that a text names, and those that they name, in the module's order. */
function usedBy(body: string, declarations: Map<string, string>): string[] {
  const used = new Set<string>();
  const visit = (text: string) => {
    for (const [word] of text.matchAll(/[\w$]+/g)) {
      const declaration = declarations.get(word);
      if (declaration === undefined || used.has(word)) continue;
      used.add(word);
      visit(declaration);
    }
  };
  visit(body);
  return [...declarations].filter(([name]) => used.has(name)).map(([, declaration]) => declaration);
}

/** `// kernel ENTRY threads MOST arguments b0:8 p7:208 t0:4`: kind, slot and bytes of each argument. */
function firstLine(kernel: PtxKernel, body: string): string {
  const sizes = [
    ...body.slice(0, body.indexOf(")")).matchAll(
      /\.param\s+(?:\.align\s+\d+\s+)?\.([bu])(\d+)\s+\w+(?:\[(\d+)\])?/g,
    ),
  ]
    .map(([, , bits, count]) => Number(bits) / 8 * Number(count ?? 1));
  if (sizes.length !== kernel.arguments.length) {
    throw new Error(`${kernel.entry} has ${sizes.length} parameters instead of ${kernel.arguments.length}`);
  }
  const letters = { buffer: "b", bytes: "p", threadgroup: "t" };
  const list = kernel.arguments.map(({ kind, index }, i) => `${letters[kind]}${index}:${sizes[i]}`);
  return `// kernel ${kernel.entry} threads ${kernel.maxThreads} arguments ${list.join(" ")}`;
}
