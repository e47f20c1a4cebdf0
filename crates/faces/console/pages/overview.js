// All models: their states, where they run, and what they do at the moment.

import { Component, html, useLayoutEffect, useMemo, useRef, useState } from './vendor/preact-htm.js';
import { Advice } from './advice.js';
import { bytes, count, micros, seconds, short, shown } from './format.js';
import {
  activityKey, allMemory, allProcessors, AT, FAILURES, LATENCY, latest, PENDING, pollModels, REQUESTS, SPAN, SPARK_SECONDS, useLive,
} from './live.js';
import { isFailing, messageOf, Problem, Segments, Spark, State, stateOf, timeline, useTitle } from './parts.js';

const KINDS = { KIND_CPU: 'CPU', KIND_GPU: 'GPU', KIND_MODEL: 'chosen by the backend', KIND_AUTO: 'automatic' };

/** Where a version runs, in a few words. */
export function runsOn(row) {
  if (row.state !== 'READY') return '';
  if (row.ensemble) return 'ensemble';
  const groups = (row.instances ?? []).map(({ kind, count: number, gpus }) => {
    const devices = gpus.length ? ` ${gpus.join(', ')}` : '';
    return `${gpus.length > 1 ? number * gpus.length : number} × ${KINDS[kind] ?? kind}${devices}`;
  });
  const processes = row.processes > 0 && `${count(row.processes)} ${row.processes === 1 ? 'process' : 'processes'}`;
  // Most engines are named like their backends: `ONNX Runtime 1.22.0`.
  const letters = text => text.toLowerCase().replace(/[^a-z0-9]/g, '');
  const backend = row.backend || row.platform;
  const isNamed = row.engine && letters(row.engine).startsWith(letters(backend));
  // Lines break between parts.
  return [!isNamed && backend, row.engine, ...groups, processes].filter(Boolean).map(part => part.replaceAll(' ', '\u00a0')).join(' · ');
}

/** The address of a model's page. */
export const modelLink = (name, version, tab) =>
  `#/models/${encodeURIComponent(name)}${tab ? `/${tab}` : ''}${version ? `?version=${encodeURIComponent(version)}` : ''}`;

function Figure({ name, value, unit, values, bad }) {
  return html`<div class="card figure"><dl><dt>${name}</dt><dd>${value}${unit && html` <small>${unit}</small>`}</dd></dl>
    ${values && html`<${Spark} values=${values} bad=${bad}/>`}</div>`;
}

function Figures({ live }) {
  const { total, at, interval, models } = live;
  const last = total.at(-1);
  const line = field => timeline(total, at, interval, SPARK_SECONDS, field);
  const served = (models ?? []).filter(row => row.state === 'READY').length;
  const failing = (models ?? []).filter(isFailing).length;
  return html`<section class="figures" aria-label="The server at the moment">
    <${Figure} name="Versions ready" value=${models ? count(served) : '–'} unit=${failing ? html`<span class="state failed">${count(failing)} failing</span>` : models ? `of ${count(models.length)}` : ''}/>
    <${Figure} name="Requests" value=${last ? short(last[REQUESTS]) : '–'} unit="/s" values=${line(REQUESTS)}/>
    <${Figure} name="Mean latency" value=${last?.[REQUESTS] > last?.[FAILURES] ? micros(last[LATENCY]) : '–'} values=${line(LATENCY)}/>
    <${Figure} name="Waiting" value=${last ? count(last[PENDING]) : '–'} unit=${last ? 'requests' : ''} values=${line(PENDING)}/>
    <${Figure} name="Failures" value=${last ? short(last[FAILURES]) : '–'} unit="/s" values=${line(FAILURES)} bad=${true}/>
    <${Figure} name="Processors busy" value=${last ? short(allProcessors(last)) : '–'} values=${line(allProcessors)}/>
    <${Figure} name="Memory" value=${last ? bytes(allMemory(last)) : '–'} values=${line(allMemory)}/>
  </section>`;
}

function Progress({ live }) {
  const fetching = new Set(live.fetches.map(fetch => fetch.name));
  const loading = (live.models ?? []).filter(row => row.state === 'LOADING' && !fetching.has(row.name));
  if (!fetching.size && !loading.length) return null;
  const shownLoading = loading.slice(0, 8);
  return html`<section class="card" aria-label="In progress"><div class="card-head"><h2>In progress</h2></div><div class="card-body bars">
    ${live.fetches.map(({ name, fetched, total, seconds: took }) => {
      const rate = took > 0 ? fetched / took : 0;
      const left = rate > 0 && total > fetched ? `, ${seconds((total - fetched) / rate)} left` : '';
      return html`<div class="progress" key=${name}><div><span>Fetching ${shown(name)}</span>
        <span class="muted">${bytes(fetched)}${total ? ` of ${bytes(total)}` : ''}, ${bytes(Math.round(rate))}/s${left}</span></div>
        <div class="track ${total ? '' : 'unknown'}" role="progressbar" aria-label="Fetching ${name}" aria-valuemin="0" aria-valuemax="100" aria-valuenow=${total ? Math.floor(100 * fetched / total) : undefined}>
          <div style=${total ? { width: `${100 * fetched / total}%` } : undefined}></div></div></div>`;
    })}
    ${shownLoading.map(row => html`<div class="progress" key=${activityKey(row.name, row.version)}><div><span>Loading ${shown(row.name)}</span>
      ${row.version && html`<span class="muted">version ${row.version}</span>`}</div>
      <div class="track unknown" role="progressbar" aria-label="Loading ${row.name}"><div></div></div></div>`)}
    ${loading.length > shownLoading.length && html`<p class="muted">and ${count(loading.length - shownLoading.length)} more</p>`}
  </div></section>`;
}

const FAILURES_SHOWN = 5;

function Failing({ models }) {
  const [all, setAll] = useState(false);
  const failing = models.filter(isFailing);
  if (!failing.length) return null;
  return html`<section class="card" aria-labelledby="failing"><div class="card-head"><h2 id="failing">Failing</h2><span class="muted">${count(failing.length)}</span></div>
    <ul class="failures">${(all ? failing : failing.slice(0, FAILURES_SHOWN)).map((row, index) => html`<li key=${activityKey(row.name, row.version)}>
      <div class="row"><a class="name" href=${modelLink(row.name, row.version)}>${shown(row.name)}</a>
        ${row.version && html`<span class="tag">version ${row.version}</span>`}<${State} row=${row}/></div>
      <pre tabindex="0" aria-label="Message">${shown(messageOf(row))}</pre>
      ${index < FAILURES_SHOWN && html`<${Advice} key=${row.reason} name=${row.name} reason=${row.reason ?? ''}/>`}</li>`)}
      ${failing.length > FAILURES_SHOWN && !all && html`<li><div><button type="button" onClick=${() => setAll(true)}>Show all ${count(failing.length)}</button></div></li>`}
    </ul></section>`;
}

/** A row, drawn again only if something in it changed. */
class Row extends Component {
  shouldComponentUpdate(next) {
    return next.stamp !== this.props.stamp;
  }

  render({ row, now, values }) {
    const failing = isFailing(row);
    return html`<tr>
      <th scope="row"><a class="name" href=${modelLink(row.name, row.version)}>${shown(row.name)}</a>
        ${row.version && html` <span class="tag">v${row.version}</span>`}
        ${failing && html`<span class="why">${shown(messageOf(row).split('\n', 1)[0])}</span>`}
        ${row.release && html`<span class="why calm">${shown(row.release)}</span>`}</th>
      <td><${State} row=${row}/></td>
      <td class="runs">${shown(runsOn(row))}</td>
      <td class="flow">${row.state === 'READY' && html`<div><${Spark} values=${values}/><span>${short(now?.[REQUESTS] ?? 0)}</span></div>`}</td>
      <td class="number wide">${now && now[REQUESTS] > now[FAILURES] ? micros(now[LATENCY]) : ''}</td>
      <td class="number wide">${now?.[PENDING] ? count(now[PENDING]) : ''}</td>
      <td class="number wide">${now?.[FAILURES] ? html`<span class="state failed">${short(now[FAILURES])}</span>` : ''}</td>
    </tr>`;
  }
}

const COLUMNS = [
  ['name', 'Model'], ['state', 'State'], ['runs', 'Runs on', 'runs'], ['requests', 'Requests/s', 'number'],
  ['latency', 'Latency', 'number wide'], ['pending', 'Waiting', 'number wide'], ['failures', 'Failures/s', 'number wide'],
];
const FIELDS = { requests: REQUESTS, latency: LATENCY, pending: PENDING, failures: FAILURES };
const FILTERS = [['all', 'All'], ['ready', 'Ready'], ['loading', 'Loading'], ['failed', 'Failing'], ['idle', 'Not loaded']];
const STATE_ORDER = ['failed', 'loading', 'ready', 'idle'];
const names = new Intl.Collator(undefined, { numeric: true });

function Models({ live }) {
  const [search, setSearch] = useState('');
  const [filter, setFilter] = useState('all');
  const [[column, down], setSort] = useState(['name', false]);
  const field = useRef();
  // A plain effect would wait until a long list is painted, and keys would be lost until then.
  useLayoutEffect(() => {
    const focus = event => {
      if (event.key === '/' && !/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) {
        event.preventDefault();
        field.current?.focus();
      }
    };
    document.addEventListener('keydown', focus);
    return () => document.removeEventListener('keydown', focus);
  }, []);
  const { models, activity, at, interval } = live;
  const rows = useMemo(() => models.map(row => {
    const samples = row.state === 'READY' ? activity.get(activityKey(row.name, row.version)) : undefined;
    const now = latest(samples, at, interval);
    const values = samples ? timeline(samples, at, interval, SPARK_SECONDS, REQUESTS, SPAN) : [];
    const stamp = [row.state, row.reason, row.release, runsOn(row), samples ? at : '', now?.[AT]].join('\n');
    return { row, now, values, stamp, text: `${row.name}\n${row.backend ?? ''}\n${row.platform ?? ''}\n${row.engine ?? ''}`.toLowerCase() };
  }), [models, activity, at]);
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const found = rows.filter(({ row, text }) =>
    (filter === 'all' || stateOf(row)[1] === filter) && words.every(word => text.includes(word)));
  const order = { name: () => 0, state: entry => STATE_ORDER.indexOf(stateOf(entry.row)[1]) };
  const compare = (a, b) => {
    if (column === 'runs') return names.compare(runsOn(a.row), runsOn(b.row));
    const value = order[column] ?? (entry => entry.now?.[FIELDS[column]] ?? -1);
    return value(a) - value(b);
  };
  found.sort((a, b) => (down ? -1 : 1) * (compare(a, b) || (column === 'name' ? names.compare(a.row.name, b.row.name) : 0))
    || names.compare(a.row.name, b.row.name) || (a.row.version ?? 0) - (b.row.version ?? 0));
  // Numbers first show what is most.
  const sort = key => setSort(([before, was]) => [key, before === key ? !was : key in FIELDS]);
  return html`<section class="card" aria-labelledby="models">
    <div class="card-head"><h2 id="models">Models</h2>
      <span class="muted" role="status">${found.length === rows.length ? count(rows.length) : `${count(found.length)} of ${count(rows.length)}`}</span>
      <input type="search" ref=${field} placeholder="Search ( / )" aria-label="Search models" value=${search} onInput=${event => setSearch(event.target.value)}/>
      <${Segments} label="State" options=${FILTERS} value=${filter} onChange=${setFilter}/></div>
    ${found.length ? html`<div class="scroll"><table class="models">
      <thead><tr>${COLUMNS.map(([key, name, look]) => html`<th scope="col" class=${look} key=${key} aria-sort=${key === column ? (down ? 'descending' : 'ascending') : undefined}>
        <button type="button" onClick=${() => sort(key)}>${name}</button></th>`)}</tr></thead>
      <tbody>${found.map(entry => html`<${Row} key=${`${entry.row.namespace} ${activityKey(entry.row.name, entry.row.version)}`} ...${entry}/>`)}</tbody>
    </table></div>` : html`<p class="empty">${rows.length ? 'No model matches.' : 'The repositories contain no models.'}</p>`}
  </section>`;
}

export function Overview() {
  const live = useLive();
  useTitle();
  return html`<h1 class="hidden">Overview</h1>
    <${Problem} error=${live.error} what="The models cannot be shown" retry=${() => pollModels(true)}/>
    ${!(live.error?.header && live.error.header === live.historyError?.header) && html`<${Problem} error=${live.historyError} what="The activity cannot be shown"/>`}
    <${Figures} live=${live}/>
    ${live.models ? html`<${Failing} models=${live.models}/><${Progress} live=${live}/><${Models} live=${live}/>`
      : !live.error && html`<p class="empty">Loading…</p>`}`;
}
