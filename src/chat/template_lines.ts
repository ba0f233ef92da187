/** Finds the line of the template on which each of its statements stands; the parser itself keeps no positions. */

/** The part of a parsed node that this file looks at. */
export interface TemplateNode {
  /** Node kind, such as "If", "For", "StringLiteral". */
  type: string;
  /** Statements inside (If, For, Macro, Set, CallStatement, FilterStatement, Program). */
  body?: TemplateNode[];
  /** The `else` or `elif` branch of an If. */
  alternate?: TemplateNode[];
  /** The `else` branch of a For. */
  defaultBlock?: TemplateNode[];
}

/** The part of a lexer token that this file looks at. */
export interface TemplateToken {
  /** Token kind, such as "Text", "OpenStatement", "Identifier". */
  type: string;
  /** Its text. */
  value: string;
}

/** Lines (from 1) of the statements of `program`; empty where template and tree cannot be matched. */
export function statementLines(
  source: string,
  tokens: readonly TemplateToken[],
  program: TemplateNode,
): Map<TemplateNode, number> {
  const blocks = blockLines(source, tokens);
  const nodes: TemplateNode[] = [];
  const visit = (statements: TemplateNode[] | undefined) => {
    for (const statement of statements ?? []) {
      nodes.push(statement);
      visit(statement.body);
      visit(statement.alternate);
      visit(statement.defaultBlock);
    }
  };
  visit(program.body);
  const lines = new Map<TemplateNode, number>();
  const starts = blocks.filter((block) => block.opensNode);
  if (starts.length !== nodes.length) return lines;
  nodes.forEach((node, i) => {
    if (starts[i].line !== undefined) lines.set(node, starts[i].line);
  });
  return lines;
}

/** The line of the block that holds token `index`, for errors of the parser. */
export function lineOfToken(
  source: string,
  tokens: readonly TemplateToken[],
  index: number,
): number | undefined {
  return blockLines(source, tokens.slice(0, index + 1)).at(-1)?.line;
}

interface Block {
  /** False for `else` and `end…`, which continue or close a node. */
  opensNode: boolean;
  /** From 1; undefined for text and comments. */
  line: number | undefined;
}

/** Text, comments, `{{ }}` and `{% %}` in order, lines taken from a scan of the source. */
function blockLines(source: string, tokens: readonly TemplateToken[]): Block[] {
  const lines = tagLines(source);
  const blocks: Block[] = [];
  let tag = 0;
  tokens.forEach((token, i) => {
    if (token.type === "Text" || token.type === "Comment") {
      blocks.push({ opensNode: true, line: undefined });
    } else if (token.type === "OpenExpression") {
      blocks.push({ opensNode: true, line: lines[tag++] });
    } else if (token.type === "OpenStatement") {
      const keyword = tokens[i + 1]?.value ?? "";
      blocks.push({ opensNode: keyword !== "else" && !keyword.startsWith("end"), line: lines[tag++] });
    }
  });
  return blocks;
}

/** The line of each `{{` and `{%`, in order; `generation` tags are left out, as the lexer removes them. */
function tagLines(source: string): number[] {
  const lines: number[] = [];
  let line = 1;
  let at = 0;
  const advance = (to: number) => {
    for (; at < to; at++) if (source[at] === "\n") line++;
  };
  while (at < source.length) {
    const opening = source.slice(at, at + 2);
    if (opening === "{#") {
      const end = source.indexOf("#}", at + 2);
      advance(end < 0 ? source.length : end + 2);
    } else if (opening === "{{" || opening === "{%") {
      if (!/^\{%-?\s*(end)?generation\b/.test(source.slice(at, at + 100))) lines.push(line);
      advance(tagEnd(source, at + 2, opening === "{{" ? "}}" : "%}"));
    } else {
      advance(at + 1);
    }
  }
  return lines;
}

/** Where the tag ends; closers inside string literals and inside `{…}` do not count. */
function tagEnd(source: string, from: number, closer: string): number {
  let depth = 0;
  for (let i = from; i < source.length; i++) {
    const c = source[i];
    if (c === '"' || c === "'") {
      for (i++; i < source.length && source[i] !== c; i++) if (source[i] === "\\") i++;
    } else if (c === "{") depth++;
    else if (depth === 0 && source.startsWith(closer, i)) return i + 2;
    else if (c === "}") depth--;
  }
  return source.length;
}
