// Requests of the form that are kept in this browser, or shared as links.

import { html, useState } from './vendor/preact-htm.js';
import { shown } from './format.js';
import { CHOICES } from './inputs.js';
import { Copy } from './parts.js';
import { elements } from './tensors.js';

const KEY = 'nereid-requests';
/** Requests kept for a model. */
const MOST = 20;
/** Characters of a link. Longer ones break in mails and chats. */
const LONGEST_LINK = 8000;
/** Elements of an input from a link: a page must not freeze for one. */
const MOST_ELEMENTS = 2 ** 22;
const FIELDS = { text: 'string', seed: 'number', used: 'boolean' };

/** The form's request as JSON. Images and sounds are files of this machine and stay out. */
export function saved(states, parameters, how) {
  const one = ({ mode, sizes, used, text, seed, scale, fit, order }) => ({ mode, sizes, used, text, seed, scale, fit, order });
  return { inputs: Object.fromEntries([...states].map(([name, state]) => [name, one(state)])), parameters, how };
}

const fits = (sizes, shape) => Array.isArray(sizes) && sizes.length === shape.length && elements(sizes) <= MOST_ELEMENTS
  && sizes.every((size, index) => Number.isInteger(size) && size >= 0 && (shape[index] < 0 || shape[index] === size));

/** The state of an input from a request, which may come from anybody, so only what the form could have made is taken. */
export function restored(request, { name, shape }, initial) {
  const inputs = request?.inputs;
  const given = inputs && Object.hasOwn(inputs, name) ? inputs[name] : undefined;
  if (typeof given !== 'object' || given === null) return initial;
  const state = { ...initial };
  for (const [field, type] of Object.entries(FIELDS)) if (typeof given[field] === type) state[field] = given[field];
  for (const [field, choices] of Object.entries(CHOICES)) if (Object.hasOwn(choices, given[field])) state[field] = given[field];
  return fits(given.sizes, shape) ? { ...state, sizes: given.sizes } : { ...initial };
}

/** The text of a link for a request. */
export function encoded(request) {
  const bytes = new TextEncoder().encode(JSON.stringify(request));
  const binary = Array.from(bytes, byte => String.fromCharCode(byte)).join('');
  return btoa(binary).replaceAll('+', '-').replaceAll('/', '_').replace(/=+$/, '');
}

/** The request of a link; `undefined` if it is none. */
export function decoded(text) {
  try {
    const bytes = Uint8Array.from(atob(text.replaceAll('-', '+').replaceAll('_', '/')), character => character.charCodeAt(0));
    return JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    return undefined;
  }
}

/** All kept requests by model, and their names. */
function read() {
  try {
    const all = JSON.parse(localStorage.getItem(KEY));
    return typeof all === 'object' && all !== null && !Array.isArray(all) ? all : {};
  } catch {
    return {};
  }
}

const listOf = model => {
  const all = read();
  const list = Object.hasOwn(all, model) ? all[model] : [];
  return Array.isArray(list) ? list.filter(one => typeof one?.name === 'string') : [];
};

function write(model, list) {
  try {
    localStorage.setItem(KEY, JSON.stringify({ ...read(), [model]: list }));
    return true;
  } catch {
    // The browser keeps nothing, or no more.
    return false;
  }
}

/** Buttons that keep the form's request, open kept ones, and copy a link. */
export function Kept({ model, version, request, open }) {
  const [list, setList] = useState(() => listOf(model));
  const [name, setName] = useState('');
  const [failed, setFailed] = useState(false);
  const change = next => {
    setFailed(!write(model, next));
    setList(listOf(model));
  };
  const keep = event => {
    event.preventDefault();
    const called = name.trim() || `Request ${list.length + 1}`;
    change([{ name: called, request }, ...list.filter(one => one.name !== called)].slice(0, MOST));
    setName('');
  };
  const query = new URLSearchParams({ ...(version ? { version } : {}), request: encoded(request) });
  const link = `${location.origin}/#/models/${encodeURIComponent(model)}?${query}`;
  return html`<section class="card" aria-labelledby="kept"><div class="card-head"><h2 id="kept">Kept in this browser</h2>
      ${link.length <= LONGEST_LINK ? html`<${Copy} text=${link} label="Copy a link"/>` : html`<span class="muted">too large for a link</span>`}</div>
    <form class="card-body row ends" onSubmit=${keep}>
      <label class="field"><span>Name</span><input value=${name} maxlength="60" placeholder="Request ${list.length + 1}" onInput=${event => setName(event.target.value)}/></label>
      <button>Keep this request</button>
    </form>
    ${failed && html`<p class="note warn" role="alert">This browser does not keep it.</p>`}
    ${list.length > 0 && html`<ul class="card-body row">${list.map(one => html`<li class="row" key=${one.name}>
      <button type="button" onClick=${() => open(one.request)}>${shown(one.name)}</button>
      <button type="button" class="plain" aria-label="Forget ${one.name}" onClick=${() => change(list.filter(other => other !== one))}>✕</button></li>`)}</ul>`}
  </section>`;
}
