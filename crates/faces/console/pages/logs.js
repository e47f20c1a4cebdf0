// The last lines of the log.

import { html, useEffect, useLayoutEffect, useRef, useState } from './vendor/preact-htm.js';
import { get, repeat, Unreachable } from './api.js';
import { count, dateTime, plainly, shown, time } from './format.js';
import { useLive } from './live.js';
import { Problem, useTitle } from './parts.js';

const POLL_MS = 1000;
const MAX_LINES = 1000;
const LEVELS = [['', 'All levels'], ['error', 'Errors'], ['warning', 'Errors and warnings'], ['info', 'Without verbose lines']];
const ORDER = ['error', 'warning', 'info', 'verbose'];

/** Whether a line is about a model: it quotes its name or that of an instance, or is from a process of the model. */
const isAbout = ({ message }, model) => message.split(`'${model}`).slice(1).some(rest => /^(_\d+)*'/.test(rest))
  || (message.startsWith(model) && /^(_\d+)*: /.test(message.slice(model.length)));

/** The choice of a model. A component of its own: it changes with the models, and the lines do not. */
function ModelChoice({ model }) {
  const live = useLive();
  const names = [...new Set([...(model ? [model] : []), ...(live.models ?? []).map(({ name }) => name)])].sort();
  const choose = name => {
    location.hash = name ? `#/logs?model=${encodeURIComponent(name)}` : '#/logs';
  };
  return html`<select aria-label="Models" class="short" value=${model ?? ''} onChange=${event => choose(event.target.value)}><option value="">All models</option>
    ${names.map(name => html`<option key=${name} value=${name}>${plainly(name)}</option>`)}</select>`;
}

export function Logs({ model }) {
  useTitle('Logs');
  const [lines, setLines] = useState();
  const [error, setError] = useState();
  const [search, setSearch] = useState('');
  const [level, setLevel] = useState('');
  const [paused, setPaused] = useState(false);
  const list = useRef();
  // Whether the end of the list is in view, so that new lines are followed.
  const atEnd = useRef(true);
  const last = useRef(0);
  const poll = useRef();
  useEffect(() => {
    if (paused) return undefined;
    const load = async () => {
      try {
        const { lines: fresh } = await get(`/console/api/log?after=${last.current}`);
        setError(undefined);
        // The log of a server that was started anew begins at 1.
        const restarted = fresh.length > 0 && fresh[0].number <= last.current;
        if (fresh.length) last.current = fresh.at(-1).number;
        setLines(before => fresh.length || !before ? [...(restarted ? [] : before ?? []), ...fresh].slice(-MAX_LINES) : before);
      } catch (problem) {
        if (!(problem instanceof Unreachable)) setError(problem);
      }
    };
    poll.current = load;
    load();
    return repeat(load, POLL_MS);
  }, [paused]);
  useLayoutEffect(() => {
    if (atEnd.current && list.current) list.current.scrollTop = list.current.scrollHeight;
  });
  const scrolled = () => {
    const { scrollTop, clientHeight, scrollHeight } = list.current;
    atEnd.current = scrollHeight - scrollTop - clientHeight < 30;
  };
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const found = (lines ?? []).filter(line => (!model || isAbout(line, model)) && (!level || ORDER.indexOf(line.level) <= ORDER.indexOf(level))
    && words.every(word => line.message.toLowerCase().includes(word) || line.place.includes(word)));
  return html`<h1 class="hidden">Logs</h1>
    <${Problem} error=${error} retry=${() => poll.current?.()}/>
    <section class="card" aria-labelledby="log"><div class="card-head"><h2 id="log">Log</h2><span class="muted">${lines ? `${count(found.length)} of the last ${count(lines.length)} lines` : ''}</span>
      <input type="search" placeholder="Search" aria-label="Search the log" value=${search} onInput=${event => setSearch(event.target.value)}/>
      <${ModelChoice} model=${model}/>
      <select aria-label="Levels" value=${level} onChange=${event => setLevel(event.target.value)}>${LEVELS.map(([key, name]) => html`<option key=${key} value=${key}>${name}</option>`)}</select>
      <button type="button" aria-pressed=${String(paused)} onClick=${() => setPaused(!paused)}>${paused ? 'Go on' : 'Pause'}</button></div>
      ${lines && !found.length ? html`<p class="empty">${lines.length ? 'No line matches.' : 'Nothing was logged yet.'}</p>` : html`<ol class="log" ref=${list} tabindex="0" aria-label="Lines" onScroll=${scrolled}>
        ${found.map(({ number, time: at, level, place, message }) => {
          const text = message.trim();
          const isTable = text.startsWith('+-');
          return html`<li key=${number}><time class="muted" datetime=${new Date(at).toISOString()} title=${dateTime(at)}>${time(at)}</time>
          <span class=${level}>${level}</span><span class="text ${level} ${isTable ? 'table' : ''}" tabindex=${isTable ? 0 : undefined}>${shown(text)}</span><span class="muted place">${shown(place)}</span></li>`;
        })}</ol>`}
    </section>`;
}
