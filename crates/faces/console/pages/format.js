// Numbers, times and texts as the pages show them.

import { html } from './vendor/preact-htm.js';

const plain = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const clock = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit', second: '2-digit' });
const moment = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'medium' });

/** A count with separators. */
export const count = value => plain.format(value);

/** A number in three digits. */
export function short(value) {
  if (!Number.isFinite(value)) return '–';
  const size = Math.abs(value);
  if (size === 0) return '0';
  if (size >= 1e9) return `${trimmed(value / 1e9)} G`;
  if (size >= 1e6) return `${trimmed(value / 1e6)} M`;
  if (size >= 1e4) return `${trimmed(value / 1e3)} k`;
  if (size < 0.01) return value > 0 ? '<0.01' : '>-0.01';
  return trimmed(value);
}

const trimmed = value => {
  const size = Math.abs(value);
  return size >= 100 ? plain.format(value) : size >= 10 ? value.toFixed(1) : value.toFixed(2);
};

/** A duration of microseconds. */
export function micros(value) {
  if (!Number.isFinite(value)) return '–';
  if (value === 0) return '0 µs';
  if (value < 1000) return `${trimmed(value)} µs`;
  if (value < 1e6) return `${trimmed(value / 1e3)} ms`;
  return seconds(value / 1e6);
}

/** A duration of seconds. */
export function seconds(value) {
  if (value < 0.001) return `${trimmed(value * 1e6)} µs`;
  if (value < 1) return `${trimmed(value * 1e3)} ms`;
  if (value < 90) return `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
  const minutes = Math.round(value / 60);
  if (minutes < 90) return `${minutes} min`;
  const hours = Math.round(value / 3600);
  return hours < 48 ? `${hours} h` : `${Math.round(hours / 24)} days`;
}

/** A size in bytes. */
export function bytes(value) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : trimmed(value)} ${units[unit]}`;
}

/** The local time of day. */
export const time = ms => clock.format(ms);

/** The local date and time. */
export const dateTime = ms => moment.format(ms);

// What does not show, and what changes the direction of other text.
const INVISIBLE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

const codeOf = text => `U+${text.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}`;

/** The same as {@link shown} where only text can be, as in a list to choose from. */
export const plainly = text => String(text).replace(INVISIBLE, codeOf);

/** A text of others, in a direction of its own, with its invisible characters shown as escapes. */
export function shown(text) {
  const parts = [];
  let start = 0;
  text = String(text);
  for (const match of text.matchAll(INVISIBLE)) {
    parts.push(text.slice(start, match.index));
    parts.push(html`<span class="escape">${codeOf(match[0])}</span>`);
    start = match.index + match[0].length;
  }
  parts.push(text.slice(start));
  return html`<bdi>${parts}</bdi>`;
}
