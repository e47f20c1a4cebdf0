// Requests to the server, and whether it answers.

import { useEffect, useRef, useState } from './vendor/preact-htm.js';

const KEYS = 'nereid-keys';

/** An answer that is an error. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
    // With an access policy, clients send an API key. A restricted part of the API names the header of its key.
    this.header = status === 401 ? 'X-API-Key' : status === 403 ? /expecting header '([^']+)'/.exec(message)?.[1] : undefined;
  }
}

/** The server did not answer. */
export class Unreachable extends Error {}

// Keys by header. They stay in this tab.
const keys = (() => {
  try {
    return JSON.parse(sessionStorage.getItem(KEYS)) ?? {};
  } catch {
    return {};
  }
})();

/** Keeps a key for the requests of this tab. */
export function keep(header, key) {
  keys[header] = key;
  sessionStorage.setItem(KEYS, JSON.stringify(keys));
}

/** The answer to a request, if it is no error. */
export async function request(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { cache: 'no-store', credentials: 'same-origin', ...options, headers: { ...keys, ...options.headers } });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Unreachable(error.message);
  }
  if (!answer.ok && answer.status !== 304) throw await refused(answer);
  return answer;
}

async function refused(answer) {
  const text = await answer.text();
  try {
    const { error } = JSON.parse(text);
    // OpenAI's interface has an object.
    return new Refused(answer.status, error?.message ?? error ?? text);
  } catch {
    return new Refused(answer.status, text || answer.statusText);
  }
}

/** The JSON document at a path. */
export const get = async (path, options) => (await request(path, options)).json();

/** Posts JSON, and returns the answer's. */
export async function post(path, body, options) {
  const answer = await request(path, { method: 'POST', body: JSON.stringify(body ?? {}), ...options });
  const text = await answer.text();
  return text ? JSON.parse(text) : undefined;
}

/** The data of the events of a stream, as they arrive. */
export async function* eventsOf(answer) {
  const decoder = new TextDecoder();
  let text = '';
  for (const reader = answer.body.getReader(); ;) {
    const { done, value } = await reader.read();
    text += done ? '' : decoder.decode(value, { stream: true });
    for (let end = text.indexOf('\n\n'); end >= 0; end = text.indexOf('\n\n')) {
      yield text.slice(0, end).split('\n').map(line => line.replace(/^data: ?/, '')).join('\n');
      text = text.slice(end + 2);
    }
    if (done) return;
  }
}

/** The path of a model, or of its version. */
export function modelPath(name, version) {
  const path = `/v2/models/${encodeURIComponent(name)}`;
  return version ? `${path}/versions/${encodeURIComponent(version)}` : path;
}

/** The document at a path: `[value, error, reload]`. Loaded again at the interval, if there is one, while the tab is visible. */
export function useDocument(path, everyMs) {
  const [state, setState] = useState({});
  const load = useRef();
  useEffect(() => {
    let ended = false;
    const run = async () => {
      if (path === undefined) return;
      try {
        const value = await get(path);
        if (!ended) setState({ path, value });
      } catch (error) {
        if (!ended) setState(before => ({ path, value: before.path === path ? before.value : undefined, error }));
      }
    };
    load.current = run;
    run();
    const stop = everyMs ? repeat(run, everyMs) : undefined;
    return () => {
      ended = true;
      stop?.();
    };
  }, [path, everyMs]);
  const current = state.path === path ? state : {};
  return [current.value, current.error, () => load.current?.()];
}

/** Calls a function at an interval while the tab is visible, and returns a function that ends it. */
export function repeat(run, everyMs) {
  let timer;
  let ended = false;
  const next = () => {
    clearTimeout(timer);
    if (!ended && !document.hidden) timer = setTimeout(turn, everyMs);
  };
  const turn = async () => {
    await run();
    next();
  };
  const shown = () => {
    clearTimeout(timer);
    if (!document.hidden) turn();
  };
  document.addEventListener('visibilitychange', shown);
  next();
  return () => {
    ended = true;
    clearTimeout(timer);
    document.removeEventListener('visibilitychange', shown);
  };
}
