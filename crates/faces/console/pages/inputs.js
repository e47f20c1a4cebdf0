// The part of the form for one input: its shape, and where its values come from.

import { html, useEffect, useRef, useState } from './vendor/preact-htm.js';
import { count, shown } from './format.js';
import { AudioInput, takesAudio } from './audio.js';
import { elements, flat, isFloat, parse } from './tensors.js';

/** Values up to this many are written out in the form, and in requests to copy. */
export const WRITTEN = 256;

const MODES = { values: 'Values', text: 'Text', zeros: 'Zeros', random: 'Random', image: 'Image', audio: 'Sound' };
const SCALES = {
  bytes: ['0 to 255', value => value],
  unit: ['0 to 1', value => value / 255],
  signed: ['−1 to 1', value => value / 127.5 - 1],
  imagenet: ['ImageNet mean and deviation', (value, channel) => (value / 255 - [0.485, 0.456, 0.406][channel % 3]) / [0.229, 0.224, 0.225][channel % 3]],
};
const FITS = { stretch: 'stretched', crop: 'cropped to the centre', pad: 'with borders' };
const ORDERS = { rgb: 'RGB', bgr: 'BGR' };

/** The fields of an input's state that have one of a few values. */
export const CHOICES = { mode: MODES, scale: SCALES, fit: FITS, order: ORDERS };

/** Where the height, the width and the channels of an image are in a shape, if it can be one. */
export function imageLayout(shape, format) {
  const rank = shape.length;
  const isChannels = size => [1, 3, 4].includes(size);
  if (rank >= 3 && format !== 'FORMAT_NHWC' && isChannels(shape[rank - 3])) return { height: rank - 2, width: rank - 1, channels: rank - 3 };
  if (rank >= 3 && format !== 'FORMAT_NCHW' && isChannels(shape[rank - 1])) return { height: rank - 3, width: rank - 2, channels: rank - 1 };
  // A gray image without a dimension for its channel.
  const [height, width] = shape.slice(-2);
  return rank >= 2 && height >= 8 && width >= 8 ? { height: rank - 2, width: rank - 1 } : undefined;
}

/** The state of an input before somebody changes it. */
export function initial({ datatype, shape, optional, format }, batched) {
  const sizes = shape.map((size, index) => size >= 0 ? size : batched && index === 0 ? 1 : datatype === 'BYTES' ? 1 : 4);
  const layout = datatype === 'BYTES' ? undefined : imageLayout(shape.map((size, index) => batched && index === 0 ? -1 : size), format);
  const image = layout && sizes[layout.height] > 4;
  if (image) {
    for (const place of [layout.height, layout.width]) if (shape[place] < 0) sizes[place] = 224;
  }
  const length = elements(sizes);
  const mode = datatype === 'BYTES' ? (length === 1 ? 'text' : 'values') : length <= WRITTEN && !image ? 'values' : 'random';
  return { mode, sizes, used: !optional, text: datatype === 'BYTES' ? '' : example(datatype, sizes), seed: Math.floor(Math.random() * 1e9), scale: datatype === 'UINT8' ? 'bytes' : 'unit', fit: 'crop', order: 'rgb', rate: 16000 };
}

/** Values to begin with, in nested arrays. */
function example(datatype, sizes) {
  let next = 0;
  const one = () => datatype === 'BOOL' ? next++ % 2 === 0 : datatype === 'BYTES' ? 'text' : next++ % 10;
  const nested = rank => rank === sizes.length ? one() : Array.from({ length: sizes[rank] }, () => nested(rank + 1));
  return elements(sizes) <= WRITTEN ? JSON.stringify(nested(0)) : '';
}

/** Numbers from 0 to 1, the same ones for a seed (mulberry32). */
function random(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let mixed = Math.imul(seed ^ (seed >>> 15), seed | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** The values of an input. */
export function valuesOf({ name, datatype }, state) {
  const length = elements(state.sizes);
  const fill = make => Array.from({ length }, (_, index) => make(index));
  switch (state.mode) {
    case 'text': return [state.text];
    case 'zeros': return fill(() => datatype === 'BOOL' ? false : datatype === 'BYTES' ? '' : 0);
    case 'random': {
      const next = random(state.seed);
      return fill(() => datatype === 'BOOL' ? next() < 0.5 : isFloat(datatype) ? Math.round(next() * 1e4) / 1e4 : Math.floor(next() * (datatype === 'UINT8' ? 256 : 10)));
    }
    case 'image': {
      if (!state.pixels) throw new Error(`${name}: choose an image`);
      return state.pixels;
    }
    case 'audio': {
      if (!state.samples) throw new Error(`${name}: choose a sound`);
      return state.samples;
    }
    default: {
      let values;
      try {
        values = flat(parse(state.text));
      } catch (error) {
        throw new Error(`${name}: ${error.message}`);
      }
      if (values.length !== length) throw new Error(`${name} has ${count(values.length)} values; its shape [${state.sizes.join(', ')}] has ${count(length)}`);
      return values;
    }
  }
}

/** Draws an image as an input takes it, and returns its values. */
function draw(image, canvas, { datatype, shape, format }, state) {
  const layout = imageLayout(shape, format) ?? imageLayout(state.sizes, format);
  const [height, width] = [state.sizes[layout.height], state.sizes[layout.width]];
  const channels = layout.channels === undefined ? 1 : state.sizes[layout.channels];
  [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext('2d', { willReadFrequently: true });
  context.imageSmoothingQuality = 'high';
  const scales = [width / image.width, height / image.height];
  const scale = state.fit === 'crop' ? Math.max(...scales) : Math.min(...scales);
  const [wide, high] = state.fit === 'stretch' ? [width, height] : [image.width * scale, image.height * scale];
  context.fillStyle = '#000';
  context.fillRect(0, 0, width, height);
  context.drawImage(image, (width - wide) / 2, (height - high) / 2, wide, high);
  const { data } = context.getImageData(0, 0, width, height);
  const [, convert] = SCALES[state.scale];
  const values = new Array(elements(state.sizes)).fill(0);
  const planar = layout.channels !== undefined && layout.channels < layout.height;
  for (let pixel = 0; pixel < width * height; pixel += 1) {
    const [red, green, blue, alpha] = data.subarray(pixel * 4, pixel * 4 + 4);
    const gray = 0.299 * red + 0.587 * green + 0.114 * blue;
    const colours = channels === 1 ? [gray] : state.order === 'bgr' ? [blue, green, red, alpha] : [red, green, blue, alpha];
    for (let channel = 0; channel < channels; channel += 1) {
      const value = convert(colours[channel], channel);
      values[planar ? channel * width * height + pixel : pixel * channels + channel] = isFloat(datatype) ? value : Math.round(value);
    }
    if (channels === 1) {
      const level = Math.round(gray);
      data.set([level, level, level, 255], pixel * 4);
    }
  }
  if (channels === 1) context.putImageData(new ImageData(data, width, height), 0, 0);
  return values;
}

function Choice({ label, options, value, onChange }) {
  return html`<label class="field"><span>${label}</span><select value=${value} onChange=${event => onChange(event.target.value)}>
    ${Object.entries(options).map(([key, name]) => html`<option key=${key} value=${key}>${Array.isArray(name) ? name[0] : name}</option>`)}
  </select></label>`;
}

function ImageInput({ input, state, set, label }) {
  const canvas = useRef();
  const [image, setImage] = useState();
  const [error, setError] = useState();
  const { fit, scale, order, sizes } = state;
  const layout = imageLayout(input.shape, input.format) ?? imageLayout(sizes, input.format);
  const colours = layout.channels !== undefined && sizes[layout.channels] > 1;
  useEffect(() => {
    if (image) set({ pixels: draw(image, canvas.current, input, state) });
  }, [image, fit, scale, order, sizes.join()]);
  const choose = async event => {
    const [file] = event.target.files;
    if (!file) return;
    try {
      setImage(await createImageBitmap(file));
      setError(undefined);
    } catch {
      setError('This file is no image that the browser can read.');
    }
  };
  return html`<div class="row ends">
      <label class="field"><span>Image file</span><input type="file" accept="image/*" aria-label="${label}, image file" onChange=${choose}/></label>
      <${Choice} label="Size" options=${FITS} value=${fit} onChange=${fit => set({ fit })}/>
      <${Choice} label="Values" options=${SCALES} value=${scale} onChange=${scale => set({ scale })}/>
      ${colours && html`<${Choice} label="Channels" options=${ORDERS} value=${order} onChange=${order => set({ order })}/>`}</div>
    ${error && html`<p class="state failed" role="alert">${error}</p>`}
    <canvas ref=${canvas} hidden=${!image} class=${sizes[layout.width] < 100 ? 'small' : ''} role="img" aria-label="The image as the model gets it"></canvas>`;
}

/** The part of the form for one input. */
export function Input({ input, state, set }) {
  const { name, datatype, shape, optional } = input;
  const isText = datatype === 'BYTES';
  const canBeImage = !isText && datatype !== 'BOOL' && (imageLayout(shape, input.format) ?? imageLayout(state.sizes, input.format));
  const modes = isText ? [...(elements(state.sizes) === 1 ? ['text'] : []), 'values'] : ['values', 'random', 'zeros', ...(canBeImage ? ['image'] : []), ...(takesAudio(input) ? ['audio'] : [])];
  const options = Object.fromEntries(modes.map(mode => [mode, isText && mode === 'values' ? 'JSON' : MODES[mode]]));
  const resize = (index, value) => {
    const sizes = state.sizes.with(index, Math.max(0, Math.floor(value) || 0));
    const text = state.mode === 'values' && !isText ? example(datatype, sizes) : state.text;
    set({ sizes, text, mode: isText && elements(sizes) !== 1 && state.mode === 'text' ? 'values' : state.mode });
  };
  return html`<fieldset class="input plainset">
    <legend class="hidden">Input ${name}</legend>
    <div class="input-head"><h3>${shown(name)}</h3><span class="mono">${datatype} [${shape.map(size => size < 0 ? '?' : size).join(', ')}]</span>
      ${optional && html`<label class="inline"><input type="checkbox" checked=${state.used} onChange=${event => set({ used: event.target.checked })}/>send this optional input</label>`}</div>
    ${state.used && html`<div class="row ends">
      ${modes.length > 1 && html`<${Choice} label="From" options=${options} value=${state.mode} onChange=${mode => set({ mode })}/>`}
      ${state.mode !== 'audio' && shape.map((size, index) => size < 0 && html`<label class="field" key=${index}><span>Size ${index + 1}</span>
        <input type="number" min="0" value=${state.sizes[index]} aria-label="${name}, size of dimension ${index + 1}" onChange=${event => resize(index, Number(event.target.value))}/></label>`)}</div>
      ${(state.mode === 'values' || state.mode === 'text') && html`<textarea rows=${state.mode === 'text' ? 3 : 4} aria-label="${name}, ${state.mode === 'text' ? 'text' : 'values in JSON'}"
        placeholder=${state.mode === 'text' ? 'A text' : isText ? '["one", "two"]' : '[1, 2, 3]'} value=${state.text} onInput=${event => set({ text: event.target.value })}></textarea>`}
      ${state.mode === 'image' && html`<${ImageInput} input=${input} state=${state} set=${set} label=${name}/>`}
      ${state.mode === 'audio' && html`<${AudioInput} input=${input} state=${state} set=${set} label=${name}/>`}`}
  </fieldset>`;
}
