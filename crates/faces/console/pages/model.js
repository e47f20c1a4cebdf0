// The pages of a model.

import { html, useMemo, useRef, useState } from './vendor/preact-htm.js';
import { Advice } from './advice.js';
import { modelPath, post, useDocument } from './api.js';
import { Charts } from './charts.js';
import { Chat } from './chat.js';
import { bytes, count, dateTime, micros, seconds, shown } from './format.js';
import { Graph } from './graph.js';
import { Sequences, States } from './history.js';
import { pollModels, useLive } from './live.js';
import { Now } from './now.js';
import { modelLink, runsOn } from './overview.js';
import { Copy, isFailing, messageOf, Problem, Scroll, Segments, State, useTitle } from './parts.js';
import { Release } from './releases.js';
import { Traces } from './traces.js';
import { Try } from './try.js';

const CONTROL = {
  none: 'Models are loaded once, at start. With --model-control-mode=explicit, they can be loaded and unloaded here.',
  poll: 'The server follows its repositories by itself. With --model-control-mode=explicit, models can be loaded and unloaded here.',
};

/** Buttons that load and unload, and what came of it. */
function Actions({ name, rows, control }) {
  const [running, setRunning] = useState();
  const [outcome, setOutcome] = useState();
  const served = rows.some(row => row.state === 'READY');
  const run = async (action, done) => {
    const began = performance.now();
    setRunning(action);
    setOutcome(undefined);
    try {
      await post(`/v2/repository/models/${encodeURIComponent(name)}/${action}`);
      setOutcome({ text: `${done} in ${seconds((performance.now() - began) / 1000)}.` });
    } catch (error) {
      setOutcome({ error });
    }
    setRunning(undefined);
    pollModels(true);
  };
  const off = !['explicit', 'on-demand'].includes(control) || running;
  const load = served ? 'Reload' : 'Load';
  return html`<div class="row">
      <button type="button" disabled=${off} onClick=${() => run('load', `${load}ed`)}>${running === 'load' ? 'Loading…' : load}</button>
      <button type="button" disabled=${off || !served} onClick=${() => run('unload', 'Unloaded')}>${running === 'unload' ? 'Unloading…' : 'Unload'}</button></div>
    ${CONTROL[control] && html`<p class="muted break">${CONTROL[control]}</p>`}
    ${outcome && html`<div class="break">${outcome.error ? html`<${Problem} error=${outcome.error}/>` : html`<div class="note" role="status">${outcome.text}</div>`}</div>`}`;
}

function Tensors({ title, tensors, declared }) {
  return html`<section class="card" aria-label=${title}><div class="card-head"><h2>${title}</h2></div>
    <${Scroll} label="${title}, table"><table><thead><tr><th scope="col">Name</th><th scope="col">Type</th><th scope="col">Shape</th><th scope="col">Notes</th></tr></thead>
    <tbody>${tensors.map(({ name, datatype, shape }) => {
      const more = declared?.find(one => one.name === name);
      const notes = [more?.optional && 'optional', more?.label_filename && `labels from ${more.label_filename}`, more?.format && more.format !== 'FORMAT_NONE' && more.format.replace('FORMAT_', ''),
        more?.allow_ragged_batch && 'ragged'].filter(Boolean);
      return html`<tr key=${name}><th scope="row">${shown(name)}</th><td class="mono">${datatype}</td><td class="mono">[${shape.map(size => size < 0 ? '?' : size).join(', ')}]</td><td class="muted">${shown(notes.join(', '))}</td></tr>`;
    })}</tbody></table><//></section>`;
}

/** Samples that run on each instance before it is ready. */
const warmUps = samples => samples.map(({ name, batch_size: size, count: times }) => [name || 'without a name', size > 1 && `batch of ${count(size)}`, times > 1 && `${count(times)} times`].filter(Boolean).join(', ')).join('; ');

const BASES = { declared: 'declared', measured: 'measured', recorded: 'measured before the last start', files: 'estimated from its files' };

/** What the backend reports, or else what the server knows. */
function memoryOf({ memory, takes }) {
  if (memory?.length) return memory.map(({ kind, device, bytes: size }) => `${kind} ${device}: ${bytes(size)}`).join(', ');
  if (!takes) return undefined;
  const parts = takes.server !== undefined && ` (when loaded: ${bytes(takes.server)} in the server, ${bytes(takes.processes)} in processes)`;
  const gpus = takes.gpus?.map(({ gpu, measured, budget }) => `; GPU ${gpu}: ${bytes(measured ?? budget)}${measured === undefined ? ', not measured' : ''}`);
  return `${bytes(takes.budget)}, ${BASES[takes.basis]}${parts || ''}${gpus?.join('') ?? ''}`;
}

function Signature({ metadata, config, row }) {
  const facts = [
    ['Runs on', row && runsOn(row)], ['Batches', config && (config.max_batch_size > 0 ? `up to ${count(config.max_batch_size)}${config.dynamic_batching ? ', formed by the server' : ''}` : 'none')],
    ['Responses', config && (config.model_transaction_policy?.decoupled ? 'any number to a request' : 'one to a request')],
    ['Requests in sequence', config?.sequence_batching && 'yes'], ['Response cache', config?.response_cache?.enable && 'on'],
    ['Priorities', config?.dynamic_batching?.priority_levels > 0 && `${count(config.dynamic_batching.priority_levels)} levels, ${count(config.dynamic_batching.default_priority_level)} by default`],
    ['Warm-up', config?.model_warmup?.length > 0 && warmUps(config.model_warmup)],
    ['Loaded in', row?.load_seconds !== undefined && seconds(row.load_seconds)],
    ['Memory', row && memoryOf(row)],
  ].filter(([, value]) => value);
  return html`<section class="card" aria-label="Facts"><dl class="facts card-body">${facts.map(([name, value]) => html`<dt key=${name}>${name}</dt><dd>${shown(value)}</dd>`)}</dl></section>
    <div class="two"><${Tensors} title="Inputs" tensors=${metadata.inputs} declared=${config?.input}/><${Tensors} title="Outputs" tensors=${metadata.outputs} declared=${config?.output}/></div>`;
}

/** The values of a document by their places in it. Empty lists and objects count as values. */
function places(value, path, found) {
  const members = typeof value === 'object' && value !== null ? Object.entries(value) : [];
  if (!members.length) found.set(path, JSON.stringify(value));
  for (const [key, member] of members) places(member, Array.isArray(value) ? `${path}[${key}]` : path ? `${path}.${key}` : key, found);
  return found;
}

/** The values that two configurations do not share. */
function Difference({ declared, config }) {
  const [before, after] = [declared, config].map(one => places(one, '', new Map()));
  const all = [...new Set([...before.keys(), ...after.keys()])].filter(path => before.get(path) !== after.get(path));
  if (!all.length) return html`<p class="empty">Nothing was completed: the configuration is served as declared, with defaults.</p>`;
  return html`<${Scroll} label="What was completed"><table><thead><tr><th scope="col">Field</th><th scope="col">Declared</th><th scope="col">Completed</th></tr></thead>
    <tbody>${all.map(path => html`<tr key=${path}><th scope="row" class="mono">${shown(path)}</th>${[before, after].map((one, index) => html`<td key=${index} class="mono">${one.has(path) ? shown(one.get(path)) : ''}</td>`)}</tr>`)}</tbody></table><//>`;
}

const FORMS = [['completed', 'Completed'], ['declared', 'Declared'], ['difference', 'Difference']];

function Configuration({ name, version, config, error, retry }) {
  const [form, setForm] = useState('completed');
  const [declared, declaredError, retryDeclared] = useDocument(`/console/api/models/${encodeURIComponent(name)}/declared${version ? `?version=${version}` : ''}`);
  const wanted = form === 'completed' ? config : declared;
  if (!config) return html`<${Problem} error=${error} retry=${retry}/>`;
  const text = wanted && JSON.stringify(wanted, undefined, 2);
  return html`<section class="card" aria-labelledby="config"><div class="card-head"><h2 id="config">Configuration</h2>
      <${Segments} label="Form" options=${FORMS} value=${form} onChange=${setForm}/>${text && form !== 'difference' && html`<${Copy} text=${text}/>`}</div>
    ${!wanted ? html`<${Problem} error=${declaredError} retry=${retryDeclared}/>` : form === 'difference' ? html`<${Difference} declared=${declared} config=${config}/>`
    : html`<pre class="code" tabindex="0" aria-label="Configuration">${shown(text)}</pre>`}</section>`;
}

const PHASES = [['queue', 'waiting'], ['compute_input', 'inputs'], ['compute_infer', 'model'], ['compute_output', 'outputs']];
const mean = ({ count, ns }) => count ? ns / count / 1000 : undefined;
const meanText = durations => durations.count ? micros(mean(durations)) : '';

/** The shares of the phases in the time of a request. */
function Phases({ stats }) {
  const times = PHASES.map(([key, name]) => [name, mean(stats[key]) ?? 0]);
  const total = times.reduce((sum, [, time]) => sum + time, 0);
  if (!total) return null;
  return html`<div class="phases" role="img" aria-label=${times.map(([name, time]) => `${name} ${micros(time)}`).join(', ')}>
    ${times.map(([, time], index) => html`<div class="p${index + 1}" style=${{ width: `${100 * time / total}%` }}></div>`)}</div>`;
}

export const Legend = () => html`<p class="legend">${PHASES.map(([, name], index) => html`<span key=${name}><i class="p${index + 1}"></i>${name}</span>`)}</p>`;

const QUANTILES = { request: 'whole request', queue: 'waiting', compute_input: 'inputs', compute_infer: 'model', compute_output: 'outputs' };

/** Latencies of the last minute by phase. */
function Quantiles({ name, version }) {
  const [value, error, retry] = useDocument(`/console/api/models/${encodeURIComponent(name)}/quantiles${version ? `?version=${version}` : ''}`, 2000);
  const phases = value?.phases ?? [];
  const columns = [['p50', 'half'], ['p90', '90 %'], ['p99', '99 %']];
  return html`<section class="card" aria-labelledby="quantiles"><div class="card-head"><h2 id="quantiles">Latency of the last minute</h2></div>
    ${error ? html`<${Problem} error=${error} retry=${retry}/>` : value && !phases.length
      ? html`<p class="card-body muted">The server keeps no quantiles. It does with --metrics-config=summary_latencies=true.</p>`
      : html`<${Scroll} label="Latency by phase"><table><thead><tr><th scope="col">Phase</th>${columns.map(([key, title]) => html`<th scope="col" class="number" key=${key}>${title} within</th>`)}</tr></thead>
        <tbody>${phases.map(one => html`<tr key=${one.phase}><th scope="row">${QUANTILES[one.phase]}</th>${columns.map(([key]) => html`<td class="number" key=${key}>${one[key] === null ? '' : micros(one[key])}</td>`)}</tr>`)}</tbody></table><//>`}
  </section>`;
}

/** Seconds that instances executed, by version. */
const busyOf = ({ model_stats: all }) => new Map(all.map(({ version, batch_stats: batches }) =>
  [version, batches.reduce((sum, { compute_input: input, compute_infer: infer, compute_output: output }) => sum + input.ns + infer.ns + output.ns, 0) / 1e9]));

/** The share of time that the instances of each version executed between the last two answers. */
function useBusy(value, instances) {
  const last = useRef();
  return useMemo(() => {
    if (!value) return undefined;
    const now = { at: performance.now() / 1000, busy: busyOf(value) };
    const before = last.current;
    last.current = now;
    return before && new Map([...now.busy].map(([version, busy]) => [version, Math.min(1, Math.max(0, busy - (before.busy.get(version) ?? busy)) / (now.at - before.at) / instances)]));
  }, [value]);
}

function Statistics({ name, version, instances }) {
  const [value, error, retry] = useDocument(`${modelPath(name, version)}/stats`, 2000);
  const busy = useBusy(value, instances);
  if (!value) return html`<${Problem} error=${error} retry=${retry}/>`;
  return html`${value.model_stats.map(({ version, inference_stats: stats, last_inference, inference_count, execution_count, batch_stats, memory_usage }) => html`
    <section class="card" key=${version} aria-label="Version ${version}"><div class="card-head"><h2>Version ${version}</h2><${Legend}/></div>
      <div class="card-body stack"><dl class="facts">
        <dt>Requests</dt><dd>${count(stats.success.count)} answered, ${count(stats.fail.count)} failed${stats.success.count > 0 && `, ${meanText(stats.success)} each`}</dd>
        <dt>Inferences</dt><dd>${count(inference_count)} in ${count(execution_count)} executions</dd>
        ${stats.cache_hit.count + stats.cache_miss.count > 0 && html`<dt>Response cache</dt><dd>${count(stats.cache_hit.count)} found, ${count(stats.cache_miss.count)} not found</dd>`}
        ${instances > 0 && batch_stats.length > 0 && html`<dt>Instances</dt><dd>${count(instances)}${busy && `, busy ${Math.round(100 * busy.get(version))} % of the time`}</dd>`}
        <dt>Last execution</dt><dd>${last_inference ? dateTime(last_inference) : 'none yet'}</dd>
        ${stats.success.count > 0 && html`<dt>Time of a request</dt><dd class="stack"><${Phases} stats=${stats}/>
          <span class="muted">${PHASES.map(([key, name]) => `${name} ${meanText(stats[key]) || '0'}`).join(' · ')}</span></dd>`}
        ${memory_usage?.length > 0 && html`<dt>Memory</dt><dd>${memory_usage.map(({ type, id, byte_size }) => `${type} ${id}: ${bytes(byte_size)}`).join(', ')}</dd>`}
      </dl></div>
      ${batch_stats.length > 0 && html`<${Scroll} label="Executions by batch size"><table><thead><tr><th scope="col">Batch size</th><th scope="col" class="number">Executions</th>
        <th scope="col" class="number">Inputs</th><th scope="col" class="number">Model</th><th scope="col" class="number">Outputs</th><th scope="col" class="number">Model, per inference</th></tr></thead>
        <tbody>${batch_stats.map(batch => html`<tr key=${batch.batch_size}><th scope="row">${batch.batch_size}</th><td class="number">${count(batch.compute_infer.count)}</td><td class="number">${meanText(batch.compute_input)}</td>
          <td class="number">${meanText(batch.compute_infer)}</td><td class="number">${meanText(batch.compute_output)}</td><td class="number">${batch.compute_infer.count ? micros(mean(batch.compute_infer) / batch.batch_size) : ''}</td></tr>`)}</tbody></table><//>`}
    </section>`)}`;
}

/** The number of instances of a version. */
const instancesOf = row => (row.instances ?? []).reduce((sum, { count: number, gpus }) => sum + number * Math.max(1, gpus.length), 0);

const TABS = [['', 'Try it'], ['signature', 'Signature'], ['charts', 'Charts'], ['statistics', 'Statistics'], ['trace', 'Trace'], ['configuration', 'Configuration']];

function Tab({ tab, name, version, row, request }) {
  const path = modelPath(name, version);
  const [metadata, metadataError, retry] = useDocument(path);
  const [config, configError, retryConfig] = useDocument(`${path}/config`);
  if (tab === 'configuration') return html`<${Configuration} name=${name} version=${version} config=${config} error=${configError} retry=${retryConfig}/>`;
  if (tab === 'charts') return html`<${Charts} model=${name} version=${row.version}/>`;
  if (tab === 'trace') return html`<${Traces} name=${name}/>`;
  if (tab === 'release') return html`<${Release} name=${name}/>`;
  if (tab === 'chat') return html`<${Chat} name=${name}/>`;
  if (tab === 'graph') return config ? html`<${Graph} config=${config}/>` : html`<${Problem} error=${configError} retry=${retryConfig}/>`;
  if (tab === 'statistics') return html`${!row.ensemble && html`<${Now} name=${name} version=${version} batches=${config?.dynamic_batching !== undefined}/>`}<${Quantiles} name=${name} version=${version}/><${Statistics} name=${name} version=${version} instances=${instancesOf(row)}/>${row.sequences && html`<${Sequences} name=${name} version=${version}/>`}<${States} model=${name}/>`;
  if (!metadata) return html`<${Problem} error=${metadataError} retry=${retry}/>`;
  if (tab === 'signature') return html`<${Problem} error=${configError} retry=${retryConfig}/><${Signature} metadata=${metadata} config=${config} row=${row}/>`;
  // The form waits for the configuration, and does without where it may not be read.
  return config || configError ? html`<${Try} metadata=${metadata} config=${config} version=${version} request=${request} key=${request}/>` : null;
}

export function Model({ name, tab, version, request }) {
  const live = useLive();
  useTitle(name);
  const rows = (live.models ?? []).filter(row => row.name === name);
  const served = rows.filter(row => row.state === 'READY');
  const current = served.find(row => row.version === version) ?? served.at(-1);
  const failing = rows.find(isFailing);
  const control = live.server?.model_control;
  // Language models, if the server has OpenAI's interface.
  const [talking] = useDocument(current?.decoupled ? '/v1/models' : undefined);
  const tabs = [...TABS, ...(current?.ensemble ? [['graph', 'Steps']] : []), ...(current?.released ? [['release', 'Release']] : []), ...(talking?.data?.some(({ id }) => id === name) ? [['chat', 'Chat']] : [])];
  if (live.models && !rows.length) return html`<h1>${shown(name)}</h1><p class="empty">The repositories contain no model of this name. <a href="#/">Overview</a></p>`;
  return html`<div class="page-head"><div><p class="crumb"><a href="#/">Models</a></p><h1>${shown(name)}</h1></div>
      ${rows.length > 0 && html`<${Actions} name=${name} rows=${rows} control=${control}/>`}</div>
    <${Problem} error=${!live.models && live.error} what="The model cannot be shown" retry=${() => pollModels(true)}/>
    <ul class=${rows.some(row => row.release) ? 'stack' : 'row'}>${rows.map(row => html`<li class="row" key=${row.version}>${row.version && (served.length > 1 && row.state === 'READY'
      ? html`<a class="button" href=${modelLink(name, row.version, tab)} aria-current=${row === current ? 'true' : undefined}>Version ${row.version}</a>` : html`<span class="tag">version ${row.version}</span>`)}
      <${State} row=${row}/>${row === current && html`<span class="muted">${shown(runsOn(row))}</span>`}${row.release && html`<span class="muted">${shown(row.release)}</span>`}</li>`)}</ul>
    ${rows.filter(row => isFailing(row)).map(row => html`<div class="note bad" role="alert" key=${row.version}><pre class="reason">${shown(messageOf(row))}</pre></div>`)}
    ${failing && html`<${Advice} key=${failing.reason} name=${name} reason=${failing.reason ?? ''}/>`}
    ${current && html`<nav class="tabs" aria-label="Parts of the model">${tabs.map(([key, title]) => html`<a key=${key} href=${modelLink(name, version, key)} aria-current=${(tab ?? '') === key ? 'page' : undefined}>${title}</a>`)}</nav>
      <${Tab} key=${`${name} ${current.version} ${live.server?.started}`} tab=${tab} name=${name} version=${served.length > 1 ? current.version : undefined} row=${current} request=${request}/>`}
    ${rows.length > 0 && !current && html`<${States} model=${name}/>`}
    ${rows.length > 0 && html`<p><a href="#/logs?model=${encodeURIComponent(name)}">Lines of the log about this model</a></p>`}`;
}
