// The settings of the log and of traces, which can be changed while the server runs.

import { html, useEffect, useState } from './vendor/preact-htm.js';
import { post, useDocument } from './api.js';
import { Changes } from './history.js';
import { Problem, useTitle } from './parts.js';

/** A form of settings: shown as the server reports them, and sent as they were changed. */
function Form({ title, note, path, read, children }) {
  const [value, error, reload] = useDocument(path);
  const [form, setForm] = useState();
  const [outcome, setOutcome] = useState();
  useEffect(() => {
    if (value) setForm(read(value));
  }, [value]);
  if (!form) return html`<${Problem} error=${error} retry=${reload} what=${title}/>`;
  const save = async event => {
    event.preventDefault();
    try {
      setForm(read(await post(path, form)));
      setOutcome({ text: 'The server uses these settings now.' });
    } catch (problem) {
      setOutcome({ error: problem });
    }
  };
  const set = change => {
    setForm({ ...form, ...change });
    setOutcome(undefined);
  };
  return html`<form class="card" onSubmit=${save} aria-label=${title}><div class="card-head"><h2>${title}</h2></div>
    <div class="card-body stack">${note && html`<p class="muted">${note}</p>`}${children(form, set, value)}
      <div class="row"><button class="primary">Apply</button></div>
      ${outcome && (outcome.error ? html`<${Problem} error=${outcome.error} retry=${reload}/>` : html`<div class="note" role="status">${outcome.text}</div>`)}</div></form>`;
}

const Check = ({ label, on, set }) => html`<label class="inline"><input type="checkbox" checked=${on} onChange=${event => set(event.target.checked)}/>${label}</label>`;

const FORMATS = ['default', 'ISO8601', 'JSON'];

const readLog = ({ log_info, log_warning, log_error, log_verbose_level, log_format }) => ({ log_info, log_warning, log_error, log_verbose_level, log_format });

function LogSettings() {
  return html`<${Form} title="Log" path="/v2/logging" read=${readLog}>${(form, set, value) => html`
    <div class="row"><${Check} label="Information" on=${form.log_info} set=${log_info => set({ log_info })}/>
      <${Check} label="Warnings" on=${form.log_warning} set=${log_warning => set({ log_warning })}/>
      <${Check} label="Errors" on=${form.log_error} set=${log_error => set({ log_error })}/></div>
    <div class="row"><label class="field"><span>Level of verbose lines</span><input type="number" min="0" value=${form.log_verbose_level} onInput=${event => set({ log_verbose_level: Number(event.target.value) })}/></label>
      <label class="field"><span>Format of lines</span><select value=${form.log_format} onChange=${event => set({ log_format: event.target.value })}>
        ${FORMATS.map(format => html`<option key=${format} value=${format}>${format}</option>`)}</select></label></div>
    <p class="muted">${value.log_file ? `Lines go to ${value.log_file}.` : 'Lines go to standard error.'}</p>`}<//>`;
}

const NUMBERS = [['trace_rate', 'Trace one request of'], ['trace_count', 'Traces left (-1: no limit)'], ['log_frequency', 'Traces in a file (0: one file)']];

/** The settings that every mode of tracing has, where the server reports them. */
function readTrace(value) {
  const numbers = NUMBERS.filter(([key]) => value[key] !== undefined).map(([key]) => [key, value[key]]);
  return { trace_level: value.trace_level, ...Object.fromEntries(numbers) };
}

function TraceSettings() {
  return html`<${Form} title="Traces" path="/v2/trace/setting" read=${readTrace} note="For all models that have no settings of their own.">${(form, set, value) => {
    const toggle = (level, on) => {
      const levels = [...form.trace_level.filter(one => one !== level && one !== 'OFF'), ...(on ? [level] : [])];
      set({ trace_level: levels.length ? levels : ['OFF'] });
    };
    return html`<div class="row"><${Check} label="Times" on=${form.trace_level.includes('TIMESTAMPS')} set=${on => toggle('TIMESTAMPS', on)}/>
        <${Check} label="Tensors" on=${form.trace_level.includes('TENSORS')} set=${on => toggle('TENSORS', on)}/></div>
      <div class="row">${NUMBERS.filter(([key]) => form[key] !== undefined).map(([key, name]) => html`<label class="field" key=${key}><span>${name}</span>
        <input type="number" value=${form[key]} onInput=${event => set({ [key]: event.target.value })}/></label>`)}</div>
      <p class="muted">Mode: ${value.trace_mode ?? 'triton'}${value.trace_file ? `, to the file ${value.trace_file}` : ''}</p>`;
  }}<//>`;
}

export function Settings() {
  useTitle('Settings');
  return html`<h1>Settings</h1><div class="two"><${LogSettings}/><${TraceSettings}/></div><${Changes}/>`;
}
