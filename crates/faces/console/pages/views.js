// Outputs that are pictures, maps of numbers, or sound.

import { html, useEffect, useLayoutEffect, useRef, useState } from './vendor/preact-htm.js';
import { seconds } from './format.js';

const MAX_PIXELS = 4_000_000;
const SMALLEST = 8;
const RATES = [8000, 16000, 22050, 24000, 44100, 48000];
const MIN_SAMPLES = 2000;

/** The sizes without leading ones. */
function sizesOf(shape) {
  const first = shape.findIndex(size => size !== 1);
  return first < 0 ? [] : shape.slice(first);
}

/** How a shape is a picture: `{ width, height, channels, planes }`. */
export function pictureOf({ shape, values }) {
  const sizes = sizesOf(shape);
  const three = sizes.length === 3 ? sizes : shape.length >= 3 && sizes.length === 2 && shape.at(-3) === 1 ? [1, ...sizes] : undefined;
  if (!three || values.length > 4 * MAX_PIXELS) return undefined;
  const [a, b, c] = three;
  if ([3, 4].includes(c) && Math.min(a, b) >= SMALLEST) return { width: b, height: a, channels: c, planes: false };
  if ([1, 3].includes(a) && Math.min(b, c) >= SMALLEST) return { width: c, height: b, channels: a, planes: true };
  return undefined;
}

/** How a shape is a map of numbers: `{ width, height }`. */
export function mapOf({ shape, values }) {
  const sizes = sizesOf(shape);
  return sizes.length === 2 && Math.min(...sizes) >= 3 && values.length <= MAX_PIXELS ? { width: sizes[1], height: sizes[0] } : undefined;
}

/** Whether values may be sound: one long row. */
export const isSound = ({ shape, datatype, values }) => ['FP32', 'FP16', 'INT16'].includes(datatype) && sizesOf(shape).length === 1 && values.length >= MIN_SAMPLES;

function rangeOf(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    const number = Number(value);
    if (number < low) low = number;
    if (number > high) high = number;
  }
  return [low, high];
}

function Pixels({ width, height, label, paint }) {
  const canvas = useRef();
  useLayoutEffect(() => {
    Object.assign(canvas.current, { width, height });
    const brush = canvas.current.getContext('2d');
    const image = brush.createImageData(width, height);
    paint(image.data);
    brush.putImageData(image, 0, 0);
  });
  const scale = Math.max(1, Math.min(12, Math.floor(320 / Math.max(width, height))));
  return html`<canvas ref=${canvas} class="pixels" role="img" aria-label=${label} style=${{ width: `${width * scale}px` }}></canvas>`;
}

/** A picture. Floats from 0 to 1 are levels; others are stretched to all levels. */
export function Picture({ output, picture: { width, height, channels, planes } }) {
  const { values, datatype } = output;
  const [low, high] = datatype === 'UINT8' ? [0, 255] : rangeOf(values);
  const [from, to] = datatype !== 'UINT8' && low >= 0 && high <= 1 ? [0, 1] : [low, high];
  const level = index => 255 * (Number(values[index]) - from) / ((to - from) || 1);
  const paint = data => {
    const pixels = width * height;
    for (let pixel = 0; pixel < pixels; pixel += 1) {
      for (let channel = 0; channel < 4; channel += 1) {
        const source = channels === 1 ? 0 : channel;
        data[4 * pixel + channel] = channel === 3 && channels < 4 ? 255 : level(planes ? source * pixels + pixel : pixel * channels + source);
      }
    }
  };
  return html`<${Pixels} width=${width} height=${height} label="${output.name} as a picture of ${width} × ${height}" paint=${paint}/>`;
}

// From dark blue over green to yellow, by evenly spaced points.
const COLOURS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

/** A map of numbers in colours. */
export function HeatMap({ output, map: { width, height } }) {
  const { name, values } = output;
  const [low, high] = rangeOf(values);
  const paint = data => values.forEach((value, index) => {
    const place = (COLOURS.length - 1) * (Number(value) - low) / ((high - low) || 1);
    const at = Math.min(COLOURS.length - 2, Math.max(0, Math.floor(place) || 0));
    COLOURS[at].forEach((from, channel) => {
      data[4 * index + channel] = from + (COLOURS[at + 1][channel] - from) * (place - at);
    });
    data[4 * index + 3] = Number.isFinite(Number(value)) ? 255 : 0;
  });
  return html`<${Pixels} width=${width} height=${height} label="${name} as a map of ${width} × ${height} numbers" paint=${paint}/>
    <p class="legend"><span><i style=${{ background: `rgb(${COLOURS[0]})` }}></i>${Number(low.toPrecision(4))}</span><span><i style=${{ background: `rgb(${COLOURS.at(-1)})` }}></i>${Number(high.toPrecision(4))}</span></p>`;
}

/** Sound with its wave. The page may load no media, so the samples are played as they are. */
export function Sound({ output: { name, datatype, values } }) {
  const [rate, setRate] = useState(16000);
  const [playing, setPlaying] = useState(false);
  const canvas = useRef();
  const context = useRef();
  const stop = () => {
    context.current?.close();
    context.current = undefined;
    setPlaying(false);
  };
  useEffect(() => stop, []);
  const samples = () => Float32Array.from(values, value => datatype === 'INT16' ? value / 32768 : Number(value));
  const play = () => {
    const audio = new AudioContext();
    const buffer = audio.createBuffer(1, values.length, rate);
    buffer.copyToChannel(samples(), 0);
    const source = audio.createBufferSource();
    source.buffer = buffer;
    source.connect(audio.destination);
    source.onended = stop;
    source.start();
    context.current = audio;
    setPlaying(true);
  };
  useLayoutEffect(() => {
    const wave = samples();
    const [width, height] = [640, 80];
    Object.assign(canvas.current, { width, height });
    const brush = canvas.current.getContext('2d');
    brush.fillStyle = getComputedStyle(document.documentElement).getPropertyValue('--accent');
    for (let column = 0; column < width; column += 1) {
      const [low, high] = rangeOf(wave.subarray(Math.floor(column * wave.length / width), Math.max(1, Math.floor((column + 1) * wave.length / width))));
      brush.fillRect(column, height / 2 * (1 - high), 1, Math.max(1, height / 2 * (high - low)));
    }
  }, [values]);
  return html`<canvas ref=${canvas} class="wave" role="img" aria-label="${name} as a wave of ${seconds(values.length / rate)}"></canvas>
    <div class="row"><button type="button" onClick=${playing ? stop : play}>${playing ? 'Stop' : 'Play'}</button>
      <label class="inline">Rate <select value=${rate} onChange=${event => setRate(Number(event.target.value))}>${RATES.map(one => html`<option key=${one} value=${one}>${one} Hz</option>`)}</select></label>
      <span class="muted">${seconds(values.length / rate)}</span></div>`;
}
