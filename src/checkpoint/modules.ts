/**
 * From raw tensors to weights: looks a module up by path, decides its format (plain, or quantised where scales lie
 * beside it), checks every shape, and remembers what was used.
 */
import { CheckpointError } from "../errors.ts";
import { GGUF_BLOCKS, type GgufType } from "./gguf_types.ts";
import { folderNaming, type Naming } from "./names.ts";
import { formatOf, type Quantization } from "./quantization.ts";
import {
  bitsOf,
  type Format,
  formatName,
  groupSizeOf,
  type IntegerTensor,
  type RawTensor,
  type ScaleDtype,
  type WeightTensor,
} from "./tensor.ts";

const PLAIN_FORMATS: Readonly<Record<string, Format>> = {
  F32: { kind: "f32" },
  BF16: { kind: "bf16" },
  F16: { kind: "f16" },
};
const SCALE_DTYPES: Readonly<Record<string, ScaleDtype>> = { F32: "f32", BF16: "bf16", F16: "f16" };
const INTEGER_DTYPES: Readonly<Record<string, IntegerTensor["dtype"]>> = { I64: "i64", I32: "i32" };

/** Which tensors, and how they are named. */
export interface ModulesOptions {
  /** The text network, unless told otherwise. */
  part?: "text" | "media";
  /** That of folders, unless told otherwise. */
  naming?: Naming;
  /** Added to every norm; 0 unless told otherwise. */
  normOffset?: number;
}

/** The text modules of one checkpoint, or its media modules, each handed out under its path. */
export class Modules {
  readonly #byPath = new Map<string, RawTensor>();
  readonly #used = new Set<string>();
  readonly #naming: Naming;
  readonly #normOffset: number;

  /** `tensors` are those of all files, `quantization` the config's entry or null. */
  constructor(
    tensors: readonly RawTensor[],
    private readonly quantization: Quantization | null,
    { part = "text", naming, normOffset = 0 }: ModulesOptions = {},
  ) {
    this.#naming = naming ?? folderNaming(tensors.map(({ name }) => name));
    this.#normOffset = normOffset;
    for (const tensor of tensors) {
      if (this.#naming.isMedia(tensor.name) !== (part === "media")) continue;
      const path = this.#naming.pathOf(tensor.name);
      const other = this.#byPath.get(path);
      if (other !== undefined) {
        throw new CheckpointError(
          "ambiguous_tensor",
          `Tensors "${other.name}" and "${tensor.name}" are both ${path}. Remove one of them.`,
        );
      }
      this.#byPath.set(path, tensor);
    }
  }

  /** Whether the file has this module. */
  has(path: string): boolean {
    return this.#byPath.has(`${path}.weight`);
  }

  /** The weight of a module that must be there: plain or quantised, of logical shape [..., out, in]. */
  matrix(path: string, shape: number[]): WeightTensor {
    const data = this.#take(`${path}.weight`);
    const scales = this.#byPath.get(`${path}.scales`);
    if (scales !== undefined) return this.#quantised(path, data, scales, shape);
    this.#checkShape(data, shape);
    return stored(data);
  }

  /** The weight of a norm that must be there. */
  norm(path: string, length: number): WeightTensor {
    const weight = this.parameter(`${path}.weight`, [length]);
    return this.#normOffset === 0 ? weight : { ...weight, addend: this.#normOffset };
  }

  /** A tensor without scales beside it that must be there under exactly this name; a vector is a plain one. */
  parameter(name: string, shape: number[]): WeightTensor {
    const data = this.#take(name);
    this.#checkShape(data, shape);
    return stored(data);
  }

  /** A plain tensor that must be there in one of these shapes, which differ between writers. */
  oneOf(name: string, shapes: number[][]): WeightTensor {
    const data = this.#take(name);
    this.#checkShape(data, shapes.find((shape) => shape.join() === data.shape.join()) ?? shapes[0]);
    return stored(data);
  }

  /** A table of integers that must be there. */
  integers(name: string, length: number): IntegerTensor {
    const data = this.#take(name);
    this.#checkShape(data, [length]);
    const dtype = INTEGER_DTYPES[data.dtype];
    if (dtype === undefined) throw wrongDtype(data, "I64 or I32");
    return { name: data.name, shape: data.shape, dtype, data: data.data };
  }

  /** The bias of a projection, or null where the file has none. */
  bias(path: string, length: number): WeightTensor | null {
    return this.#byPath.has(`${path}.bias`) ? this.parameter(`${path}.bias`, [length]) : null;
  }

  /** Marks every tensor of a module as known and not needed. Returns their names in the file. */
  ignore(path: string): string[] {
    const names: string[] = [];
    for (const part of ["", ".weight", ".scales", ".biases", ".bias"]) {
      const tensor = this.#byPath.get(path + part);
      if (tensor === undefined) continue;
      this.#used.add(path + part);
      names.push(tensor.name);
    }
    return names;
  }

  /** Names of the tensors that nothing asked for. */
  unused(): string[] {
    const names: string[] = [];
    for (const [path, tensor] of this.#byPath) if (!this.#used.has(path)) names.push(tensor.name);
    return names;
  }

  #take(name: string): RawTensor {
    const tensor = this.#byPath.get(name);
    if (tensor === undefined) {
      throw new CheckpointError(
        "missing_tensor",
        `Tensor "${this.#naming.nameOf(name)}" is missing from the checkpoint; ` +
          `download it again, or use a conversion that keeps this tensor.`,
      );
    }
    this.#used.add(name);
    return tensor;
  }

  #quantised(path: string, data: RawTensor, scales: RawTensor, shape: number[]): WeightTensor {
    const format = this.quantization === null ? false : formatOf(this.quantization, path);
    if (format === false) {
      throw new CheckpointError(
        "invalid_config",
        `Tensor "${data.name}" has scales, but config.json gives no quantization for it. ` +
          `Use the config.json that was written with these weights.`,
      );
    }
    const columns = shape[shape.length - 1];
    const group = groupSizeOf(format)!;
    if (columns % group !== 0) {
      throw new CheckpointError(
        "invalid_config",
        `Tensor "${data.name}" has ${columns} columns, which groups of ${group} (${
          formatName(format)
        }) do not divide.`,
      );
    }
    if (data.dtype !== "U32") throw wrongDtype(data, "U32");
    const rows = shape.slice(0, -1);
    const as = ` for ${formatName(format)} [${shape}]`;
    this.#checkShape(data, [...rows, columns * bitsOf(format) / 32], as);
    this.#used.add(`${path}.scales`);
    this.#checkShape(scales, [...rows, columns / group], as);
    const scaleDtype = format.kind === "affine"
      ? SCALE_DTYPES[scales.dtype]
      : scales.dtype === "U8"
      ? "u8"
      : undefined;
    if (scaleDtype === undefined) {
      throw wrongDtype(scales, format.kind === "affine" ? "BF16, F16 or F32" : "U8");
    }
    const weight = { name: data.name, shape, format, scaleDtype };
    if (format.kind !== "affine") return { ...weight, parts: { data: data.data, scales: scales.data } };

    const biases = this.#take(`${path}.biases`);
    this.#checkShape(biases, scales.shape, as);
    if (biases.dtype !== scales.dtype) throw wrongDtype(biases, `${scales.dtype} as its scales`);
    return { ...weight, parts: { data: data.data, scales: scales.data, biases: biases.data } };
  }

  #checkShape(tensor: RawTensor, expected: number[], as: string = ""): void {
    const actual = tensor.shape;
    if (actual.length === expected.length && actual.every((size, i) => size === expected[i])) return;
    const { config } = this.#naming;
    throw new CheckpointError(
      "tensor_shape",
      `Tensor "${tensor.name}" has shape [${actual.join(", ")}], but ${config} asks for [${
        expected.join(", ")
      }]${as}. Use the ${config.replace("its ", "")} that belongs to these weights.`,
    );
  }
}

/** A tensor that carries all that it needs: plain numbers, or blocks. */
function stored(tensor: RawTensor): WeightTensor {
  const block = tensor.dtype.toLowerCase() as GgufType;
  const format: Format | undefined = tensor.shape.length > 1 && Object.hasOwn(GGUF_BLOCKS, block)
    ? { kind: "gguf", type: block }
    : PLAIN_FORMATS[tensor.dtype];
  if (format === undefined) throw wrongDtype(tensor, "F32, BF16 or F16");
  return { name: tensor.name, shape: tensor.shape, format, parts: { data: tensor.data }, scaleDtype: null };
}

function wrongDtype(tensor: RawTensor, expected: string): CheckpointError {
  return new CheckpointError(
    "tensor_dtype",
    `Tensor "${tensor.name}" has dtype ${tensor.dtype}; it must be ${expected}. Convert the checkpoint.`,
  );
}
