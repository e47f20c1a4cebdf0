// Tensors: values from a form as bytes, and bytes of an answer as values.

/** Bytes of an element; BYTES have none. */
const SIZES = { BOOL: 1, UINT8: 1, INT8: 1, UINT16: 2, INT16: 2, FP16: 2, BF16: 2, UINT32: 4, INT32: 4, FP32: 4, UINT64: 8, INT64: 8, FP64: 8 };

export const isFloat = datatype => /^(FP|BF)/.test(datatype);
export const elements = shape => shape.reduce((product, size) => product * size, 1);

/** All elements of nested arrays, in order. */
export const flat = value => Array.isArray(value) ? value.flat(Infinity) : [value];

/** Parses JSON. Integers that a number cannot hold stay texts. */
export function parse(text) {
  return JSON.parse(text.replace(/"(?:[^"\\]|\\.)*"|-?\d{16,}(?![\d.eE])/g, part => part[0] === '"' ? part : `"${part}"`));
}

/** The content of a tensor in the protocol's binary form. */
export function encode(datatype, values) {
  if (datatype === 'BYTES') return encodeTexts(values.map(value => typeof value === 'string' ? value : JSON.stringify(value)));
  const size = SIZES[datatype];
  if (!size) throw new Error(`${datatype} has no form here`);
  const view = new DataView(new ArrayBuffer(size * values.length));
  values.forEach((value, index) => write(view, index * size, datatype, value));
  return new Uint8Array(view.buffer);
}

function encodeTexts(texts) {
  const parts = texts.map(text => new TextEncoder().encode(text));
  const all = new Uint8Array(parts.reduce((length, part) => length + 4 + part.length, 0));
  const view = new DataView(all.buffer);
  let at = 0;
  for (const part of parts) {
    view.setUint32(at, part.length, true);
    all.set(part, at + 4);
    at += 4 + part.length;
  }
  return all;
}

function write(view, at, datatype, value) {
  if (datatype === 'BOOL') return view.setUint8(at, value ? 1 : 0);
  const number = Number(value);
  if (typeof value === 'boolean' || value === null || value === '' || Number.isNaN(number)) throw new Error(`${JSON.stringify(value)} is not a number`);
  if (!isFloat(datatype)) {
    const whole = integer(value, number);
    const bits = BigInt(SIZES[datatype] * 8);
    const signed = datatype[0] === 'I';
    const [low, high] = signed ? [-(1n << (bits - 1n)), (1n << (bits - 1n)) - 1n] : [0n, (1n << bits) - 1n];
    if (whole < low || whole > high) throw new Error(`${value} is out of range for ${datatype}`);
    if (bits === 64n) return view.setBigUint64(at, BigInt.asUintN(64, whole), true);
    const unsigned = Number(BigInt.asUintN(Number(bits), whole));
    return bits === 8n ? view.setUint8(at, unsigned) : bits === 16n ? view.setUint16(at, unsigned, true) : view.setUint32(at, unsigned, true);
  }
  switch (datatype) {
    case 'FP16': return view.setUint16(at, half(number), true);
    case 'BF16': return view.setUint16(at, brain(number), true);
    case 'FP32': return view.setFloat32(at, number, true);
    default: return view.setFloat64(at, number, true);
  }
}

function integer(value, number) {
  if (typeof value === 'string') return BigInt(value);
  if (!Number.isInteger(number)) throw new Error(`${value} is not a whole number`);
  return BigInt(number);
}

/** The bits of a number in half precision, rounded to even. */
function half(number) {
  const view = new DataView(new ArrayBuffer(4));
  view.setFloat32(0, number);
  const bits = view.getUint32(0);
  const sign = (bits >>> 16) & 0x8000;
  const exponent = ((bits >>> 23) & 0xff) - 112;
  const fraction = bits & 0x7fffff;
  if (exponent >= 31) return sign | 0x7c00 | ((bits & 0x7fffffff) > 0x7f800000 ? 0x200 : 0);
  // A number too small for a normal one has its leading bit in the fraction.
  const [whole, shift] = exponent > 0 ? [(exponent << 23) | fraction, 13] : [fraction | 0x800000, 14 - exponent];
  if (shift > 25) return sign;
  const kept = Math.floor(whole / 2 ** shift);
  const rest = whole - kept * 2 ** shift;
  const middle = 2 ** (shift - 1);
  return sign | (kept + (rest > middle || (rest === middle && kept % 2 === 1) ? 1 : 0));
}

/** The bits of a number in bfloat16, rounded to even. */
function brain(number) {
  const view = new DataView(new ArrayBuffer(4));
  view.setFloat32(0, number);
  const bits = view.getUint32(0);
  if ((bits & 0x7fffffff) > 0x7f800000) return (bits >>> 16) | 0x40;
  return ((bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16) & 0xffff;
}

/** The elements of a tensor in binary form. BYTES are texts, or `Uint8Array` where they are not UTF-8. */
export function decode(datatype, bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (datatype === 'BYTES') return decodeTexts(view);
  const size = SIZES[datatype];
  if (!size) return [];
  return Array.from({ length: Math.floor(bytes.length / size) }, (_, index) => read(view, index * size, datatype));
}

function decodeTexts(view) {
  const texts = [];
  for (let at = 0; at + 4 <= view.byteLength;) {
    const length = view.getUint32(at, true);
    const bytes = new Uint8Array(view.buffer, view.byteOffset + at + 4, Math.min(length, view.byteLength - at - 4));
    try {
      texts.push(new TextDecoder('utf-8', { fatal: true }).decode(bytes));
    } catch {
      texts.push(bytes);
    }
    at += 4 + length;
  }
  return texts;
}

function read(view, at, datatype) {
  switch (datatype) {
    case 'BOOL': return view.getUint8(at) !== 0;
    case 'UINT8': return view.getUint8(at);
    case 'INT8': return view.getInt8(at);
    case 'UINT16': return view.getUint16(at, true);
    case 'INT16': return view.getInt16(at, true);
    case 'UINT32': return view.getUint32(at, true);
    case 'INT32': return view.getInt32(at, true);
    case 'UINT64': return view.getBigUint64(at, true);
    case 'INT64': return view.getBigInt64(at, true);
    case 'FP32': return view.getFloat32(at, true);
    case 'FP64': return view.getFloat64(at, true);
    case 'BF16': {
      const wide = new DataView(new ArrayBuffer(4));
      wide.setUint16(0, view.getUint16(at, true));
      return wide.getFloat32(0);
    }
    default: return fromHalf(view.getUint16(at, true));
  }
}

function fromHalf(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction);
}

/** The outputs of an inference answer with tensors behind its JSON. */
export async function answerOf(answer) {
  const bytes = new Uint8Array(await answer.arrayBuffer());
  const length = Number(answer.headers.get('inference-header-content-length') ?? bytes.length);
  const head = JSON.parse(new TextDecoder().decode(bytes.subarray(0, length)));
  let at = length;
  const outputs = (head.outputs ?? []).map(output => {
    const size = output.parameters?.binary_data_size;
    if (size === undefined) return { ...output, values: flat(output.data ?? []) };
    at += size;
    return { ...output, values: decode(output.datatype, bytes.subarray(at - size, at)) };
  });
  return { ...head, outputs };
}
