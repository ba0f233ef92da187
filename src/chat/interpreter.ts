/** The template interpreter: `@huggingface/jinja` with limits, Python's printing and errors that name a line. */

import { Environment, Interpreter } from "npm:@huggingface/jinja@0.5.11";
import { MarkbaseError, TemplateError } from "../errors.ts";
import { type FilterContext, FILTERS, STRING_METHODS } from "./filters.ts";
import { bind, iterate, LoopControl, loopObject, type LoopTarget, usesLoop } from "./loops.ts";
import {
  isList,
  isMap,
  isText,
  pythonEquals,
  pythonString,
  type RuntimeValue,
  toRuntime,
} from "./python_values.ts";
import { strftime } from "./strftime.ts";
import type { TemplateNode } from "./template_lines.ts";

/** What a template may use before it is stopped. */
export interface TemplateLimits {
  /** Evaluated nodes, plus work in proportion to the texts and lists that they handle. Default 50 million, some seconds. */
  steps: number;
  /** Nested evaluations; each level of a macro takes about eight. The stack overflows soon above the default of 500. */
  depth: number;
  /** UTF-16 units of the output and of every text on the way. Default 16 Mi. */
  outputLength: number;
  /** Items of a list or range, and UTF-16 units of a text that is gone through as one. Default 1 Mi. */
  listLength: number;
  /** UTF-16 units of the template itself. Default 256 Ki. */
  sourceLength: number;
}

/** The limits that apply where none are given. */
export const DEFAULT_LIMITS: TemplateLimits = {
  steps: 50_000_000,
  depth: 500,
  outputLength: 16 * 1024 * 1024,
  listLength: 1024 * 1024,
  sourceLength: 256 * 1024,
};

type Node = NonNullable<Parameters<Interpreter["evaluate"]>[0]>;
type Value = ReturnType<Interpreter["evaluate"]>;

/** Methods of the engine that are private in its types; the exact version is pinned. */
interface EngineInternals {
  evaluateBlock(statements: Node[], environment: Environment): Value;
  evaluateArguments(args: Node[], environment: Environment): [RuntimeValue[], Map<string, RuntimeValue>];
  applyFilter(operand: Value, filter: Node, environment: Environment): Value;
}

interface CallNode extends Node {
  callee: MemberNode & { value: string };
  args: Node[];
}

interface MemberNode extends Node {
  object: Node;
  property: Node & { value: string };
  computed: boolean;
}

interface BinaryNode extends Node {
  operator: { value: string };
  left: Node;
  right: Node;
}

interface LoopNode extends Node {
  loopvar: Node & LoopTarget;
  iterable: Node & { lhs?: Node; test?: Node };
  body: Node[];
  defaultBlock: Node[];
}

interface TestNode extends Node {
  operand: Node;
  negate: boolean;
  test: Node & { value: string };
}

/** Statements that print nothing of their own. */
const SILENT = new Set(["Set", "Macro", "Comment"]);

/** The output of a template, or its failure and the innermost statement that was running then. */
export type TemplateRun =
  | { text: string }
  | { error: unknown; statement: TemplateNode | undefined };

/** Runs a parsed template once, with `variables` beside the globals. */
export function runTemplate(
  program: TemplateNode,
  variables: Record<string, unknown>,
  limits: TemplateLimits,
  now: () => Date,
): TemplateRun {
  const interpreter = new LimitedInterpreter(limits, now);
  try {
    for (const [name, value] of Object.entries(variables)) interpreter.global.set(name, value);
    return { text: String(interpreter.evaluate(program as unknown as Node, interpreter.global).value) };
  } catch (error) {
    return { error, statement: interpreter.failedAt };
  }
}

/** One run. */
class LimitedInterpreter extends Interpreter implements FilterContext {
  /** The innermost statement that was running when an error passed through. */
  failedAt: TemplateNode | undefined;
  #steps = 0;
  #depth = 0;
  #limits: TemplateLimits;
  #engine: EngineInternals;
  #engineFilter: EngineInternals["applyFilter"];

  /** An interpreter whose globals are the constants, `raise_exception`, `range` and `strftime_now`. */
  constructor(limits: TemplateLimits, now: () => Date) {
    const globals = new Environment();
    super(globals);
    this.#limits = limits;
    this.#engine = this as unknown as EngineInternals;
    this.#engineFilter = this.#engine.applyFilter.bind(this);
    this.#engine.evaluateBlock = (statements, environment) => this.#block(statements, environment);
    this.#engine.applyFilter = (operand, filter, environment) => this.#filter(operand, filter, environment);
    for (const [name, value] of [["true", true], ["false", false], ["none", null]] as const) {
      globals.set(name, value);
      globals.set(name[0].toUpperCase() + name.slice(1), value);
    }
    globals.set("raise_exception", (message: unknown) => {
      throw new TemplateError("template_raised", String(message));
    });
    globals.set("strftime_now", (format: unknown) => strftime(now(), String(format)));
    globals.set("range", (...bounds: unknown[]) => this.#range(bounds));
  }

  /** Evaluates one node under the limits. */
  override evaluate(node: Node | undefined, environment: Environment): Value {
    this.charge(1);
    if (++this.#depth > this.#limits.depth) throw limit("depth", this.#limits.depth, "nested evaluations");
    try {
      const value = node === undefined
        ? super.evaluate(node, environment)
        : this.#evaluate(node, environment);
      if (isText(value)) {
        this.checkLength(value.value.length);
        this.charge(value.value.length >> 10);
      } else if (isList(value)) {
        if (value.value.length > this.#limits.listLength) {
          throw limit("listLength", this.#limits.listLength, "items in a list");
        }
        this.charge(value.value.length >> 6);
      }
      return value;
    } finally {
      this.#depth--;
    }
  }

  /** Spends steps. */
  readonly charge = (units: number): void => {
    this.#steps += units;
    if (this.#steps > this.#limits.steps) throw limit("steps", this.#limits.steps, "steps");
  };

  /** Refuses a text that would be too long. */
  readonly checkLength = (units: number): void => {
    if (units > this.#limits.outputLength) {
      throw limit("outputLength", this.#limits.outputLength, "characters of text");
    }
  };

  /** Applies a filter without arguments. */
  apply(name: string, operand: RuntimeValue): RuntimeValue {
    return this.#filterByName(operand, name, [], new Map(), () => {
      const node = { type: "Identifier", value: name } as unknown as Node;
      return this.#engineFilter(operand as Value, node, this.global);
    });
  }

  #evaluate(node: Node, environment: Environment): Value {
    switch (node.type) {
      case "Break":
      case "Continue":
        throw new LoopControl(node.type);
      case "For":
        return this.#loop(node as LoopNode, environment) as Value;
      case "Macro":
      case "CallStatement":
        this.charge(256); // the engine scans the whole body each time
        return super.evaluate(node, environment);
      case "Identifier":
        return lookup((node as Node & { value: string }).value, environment) as Value;
      case "TestExpression":
        return this.#test(node as TestNode, environment) as Value ?? super.evaluate(node, environment);
      case "MemberExpression":
        return this.#dictMethod(node as MemberNode, environment) as Value ??
          super.evaluate(node, environment);
      case "BinaryExpression":
        return this.#binary(node as BinaryNode, environment) as Value ?? super.evaluate(node, environment);
      case "CallExpression":
        return this.#method(node as CallNode, environment) as Value ?? super.evaluate(node, environment);
      default:
        return super.evaluate(node, environment);
    }
  }

  /** Statements in order; values are printed as Python prints them. */
  #block(statements: Node[], environment: Environment): Value {
    let output = "";
    for (const statement of statements) {
      try {
        const value = this.evaluate(statement, environment);
        if (!SILENT.has(statement.type)) output += pythonString(value, this.charge);
        this.checkLength(output.length);
      } catch (error) {
        if (error instanceof LoopControl) error.output = output + error.output;
        else this.failedAt ??= statement as unknown as TemplateNode;
        throw error;
      }
    }
    return toRuntime(output) as Value;
  }

  /**
   * A loop as in Jinja: variables set in one turn are gone in the next, undefined has no items, text has characters.
   * Only one scope is made, and `loop` only where it is read: templates walk back over all messages for each message.
   */
  #loop(node: LoopNode, environment: Environment): RuntimeValue {
    const { iterable } = node;
    const scope = new Environment(environment);
    const set = (name: string, value: RuntimeValue) => void scope.setVariable(name, value as Value);
    const filtered = iterable.type === "SelectExpression";
    const whole = this.evaluate(filtered ? iterable.lhs : iterable, environment);
    this.#checkCharacters(whole);
    let items = iterate(whole);
    if (filtered) {
      items = items.filter((item) => {
        scope.variables.clear();
        bind(node.loopvar, item, set);
        return this.evaluate(iterable.test, scope).__bool__().value;
      });
    }
    if (items.length === 0) return this.#block(node.defaultBlock, environment);
    let output = "";
    for (let i = 0; i < items.length; i++) {
      this.charge(1);
      scope.variables.clear();
      if (usesLoop(node.body)) scope.setVariable("loop", loopObject(items, i) as Value);
      bind(node.loopvar, items[i], set);
      try {
        output += this.#block(node.body, scope).value;
      } catch (error) {
        if (!(error instanceof LoopControl)) throw error;
        output += error.output;
        if (error.kind === "Break") break;
      }
      this.checkLength(output.length);
    }
    return toRuntime(output);
  }

  /** The tests whose result differs from Jinja's in the engine; undefined leaves the rest to it. */
  #test(node: TestNode, environment: Environment): RuntimeValue | undefined {
    const test = TESTS.get(node.test.value);
    if (test === undefined) return undefined;
    return toRuntime(test(this.evaluate(node.operand, environment)) !== node.negate);
  }

  /** The operators whose result differs from Python's in the engine; undefined leaves the rest to it. */
  #binary(node: BinaryNode, environment: Environment): RuntimeValue | undefined {
    const operator = node.operator.value;
    if (!["==", "!=", "~", "in", "not in"].includes(operator)) return undefined;
    const { charge } = this;
    const left = this.evaluate(node.left, environment);
    const right = this.evaluate(node.right, environment);
    if (operator === "~") return toRuntime(pythonString(left, charge) + pythonString(right, charge));
    if (operator === "==" || operator === "!=") {
      return toRuntime(pythonEquals(left, right, charge) === (operator === "=="));
    }
    return toRuntime(this.#contains(right, left) === (operator === "in"));
  }

  #contains(container: RuntimeValue, item: RuntimeValue): boolean {
    if (isList(container)) return container.value.some((x) => pythonEquals(x, item, this.charge));
    if (isMap(container)) return isText(item) && container.value.has(item.value);
    if (isText(container) && isText(item)) return container.value.includes(item.value);
    if (container.type === "UndefinedValue") return false;
    throw new Error(`"in" does not work between a ${item.type} and a ${container.type}`);
  }

  /** `x.keys` is the method of a dict even if it has such a key; `x["keys"]` is the key. Undefined for all else. */
  #dictMethod(node: MemberNode, environment: Environment): RuntimeValue | undefined {
    if (node.computed || !DICT_METHODS.has(node.property.value)) return undefined;
    const object = this.evaluate(node.object, environment);
    if (object.type !== "ObjectValue") return undefined;
    return (object as RuntimeValue & { builtins: Map<string, RuntimeValue> }).builtins.get(
      node.property.value,
    );
  }

  /** A call of a string method that this project defines; undefined leaves the call to the engine. */
  #method(node: CallNode, environment: Environment): RuntimeValue | undefined {
    const { callee } = node;
    if (callee.type !== "MemberExpression" || callee.computed) return undefined;
    const method = STRING_METHODS.get(callee.property.value);
    if (method === undefined) return undefined;
    const object = this.evaluate(callee.object, environment);
    if (!isText(object)) return undefined;
    const [args] = this.#engine.evaluateArguments(node.args, environment);
    return method(object.value, args, this);
  }

  #filter(operand: Value, node: Node, environment: Environment): Value {
    const call = node as CallNode;
    const isCall = node.type === "CallExpression";
    const name = isCall ? call.callee.value : (node as unknown as { value: string }).value;
    const [args, named] = isCall && FILTERS.has(name)
      ? this.#engine.evaluateArguments(call.args, environment)
      : [[], new Map<string, RuntimeValue>()];
    return this.#filterByName(
      operand,
      name,
      args,
      named,
      () => this.#engineFilter(operand, node, environment),
    ) as Value;
  }

  #filterByName(
    operand: RuntimeValue,
    name: string,
    args: RuntimeValue[],
    named: Map<string, RuntimeValue>,
    otherwise: () => RuntimeValue,
  ): RuntimeValue {
    const filter = FILTERS.get(name);
    if (filter !== undefined) {
      if (BY_CHARACTER.has(name)) this.#checkCharacters(operand);
      const result = filter(operand, args, named, this);
      if (isText(result)) this.checkLength(result.value.length);
      return result;
    }
    try {
      return otherwise() ?? toRuntime(undefined);
    } catch (error) {
      if (
        error instanceof Error && !(error instanceof MarkbaseError) && /^Unknown .*filter/.test(error.message)
      ) {
        throw new TemplateError("unknown_filter", `there is no filter "${name}" for a ${operand.type}`);
      }
      throw error;
    }
  }

  /** Refuses to make a list of a text's characters that would be too long. */
  #checkCharacters(value: RuntimeValue): void {
    if (!isText(value) || value.value.length <= this.#limits.listLength) return;
    throw limit("listLength", this.#limits.listLength, "characters of a text as a list");
  }

  #range(bounds: unknown[]): number[] {
    const numbers = bounds.filter((bound) => bound !== undefined && !(bound instanceof Map));
    if (numbers.length < 1 || numbers.length > 3 || !numbers.every((n) => Number.isInteger(n))) {
      throw new Error("range() takes one to three integers");
    }
    const [start, stop, step] = numbers.length === 1
      ? [0, numbers[0] as number, 1]
      : [numbers[0] as number, numbers[1] as number, numbers[2] as number ?? 1];
    if (step === 0) throw new Error("range() cannot step by zero");
    const length = Math.max(0, Math.ceil((stop - start) / step));
    if (length > this.#limits.listLength) {
      throw limit("listLength", this.#limits.listLength, "items in a range");
    }
    this.charge(length);
    return Array.from({ length }, (_, i) => start + i * step);
  }
}

/** Filters that take a text as the list of its characters. */
const BY_CHARACTER = new Set(["list", "first", "last", "sort", "map", "join"]);

const DICT_METHODS = new Set(["get", "items", "keys", "values"]);

/** A variable. The engine's own lookup takes a full stack for an unknown name. */
function lookup(name: string, environment: Environment): RuntimeValue {
  for (let scope: Environment | undefined = environment; scope !== undefined; scope = scope.parent) {
    const value = scope.variables.get(name);
    if (value !== undefined) return value;
  }
  return toRuntime(undefined);
}

const TESTS = new Map<string, (value: RuntimeValue) => boolean>([
  ["iterable", (value) => isList(value) || isMap(value) || isText(value) || value.type === "UndefinedValue"],
  ["sequence", (value) => isList(value) || isMap(value) || isText(value) || value.type === "UndefinedValue"],
  ["float", (value) => value.type === "FloatValue"],
  ["number", (value) => typeof value.value === "number" || typeof value.value === "boolean"],
]);

function limit(name: keyof TemplateLimits, value: number, what: string): TemplateError {
  return new TemplateError(
    "template_limit",
    `it needs more than ${value} ${what} (limit "${name}"); shorten the conversation or raise the limit`,
  );
}
