// Try it: a form made from a model's signature, and the answer to its request.

import { html, useEffect, useMemo, useRef, useState } from './vendor/preact-htm.js';
import { eventsOf, modelPath, request } from './api.js';
import { seconds, shown } from './format.js';
import { initial, Input, valuesOf } from './inputs.js';
import { Copy, Problem, Segments } from './parts.js';
import { Output } from './results.js';
import { decoded, Kept, restored, saved } from './saved.js';
import { curl, javascript, rust, tritonclient } from './snippets.js';
import { answerOf, encode } from './tensors.js';

/** The inputs with what the configuration adds to the signature. */
function inputsOf(metadata, config) {
  const declared = new Map((config?.input ?? []).map(input => [input.name, input]));
  return metadata.inputs.map(input => ({ ...input, optional: declared.get(input.name)?.optional === true, format: declared.get(input.name)?.format }));
}

/** The body of an inference request: JSON, then the tensors in binary form. */
function bodyOf(inputs, parameters) {
  const tensors = inputs.map(({ datatype, values }) => encode(datatype, values));
  const head = {
    parameters: { ...parameters, binary_data_output: true },
    inputs: inputs.map(({ name, datatype, shape }, index) => ({ name, datatype, shape, parameters: { binary_data_size: tensors[index].length } })),
  };
  const json = new TextEncoder().encode(JSON.stringify(head));
  return [new Blob([json, ...tensors]), json.length];
}

/** One flat object, as the generate extension takes it. */
function flatBody(inputs, parameters) {
  const members = inputs.map(({ name, values }) => [name, values.length === 1 ? values[0] : values]);
  return { ...parameters, ...Object.fromEntries(members.map(([name, value]) => [name, typeof value === 'bigint' ? Number(value) : value])) };
}

/** Names of classes from an answer with the classification extension: `score:index:label`. */
async function labelsOf(path, inputs, parameters, outputs) {
  const [body, length] = bodyOf(inputs, parameters);
  const bytes = new Uint8Array(await body.arrayBuffer());
  const head = JSON.parse(new TextDecoder().decode(bytes.subarray(0, length)));
  delete head.parameters.binary_data_output;
  head.outputs = outputs.map(name => ({ name, parameters: { classification: 10 } }));
  const json = new TextEncoder().encode(JSON.stringify(head));
  const answer = await request(`${path}/infer`, { method: 'POST', body: new Blob([json, bytes.subarray(length)]), headers: { 'Inference-Header-Content-Length': String(json.length) } });
  const labels = new Map();
  for (const { name, values } of (await answerOf(answer)).outputs) {
    labels.set(name, new Map(values.filter(value => typeof value === 'string').map(value => {
      const [, index, ...label] = value.split(':');
      return [Number(index), label.join(':')];
    })));
  }
  return labels;
}

/** A stream's responses: their texts in one piece, or each as JSON. */
function Stream({ events, done }) {
  const texts = events.map(event => Object.entries(event).filter(([name, value]) => typeof value === 'string' && !/^(model_name|model_version|id)$/.test(name)));
  const isText = events.length > 0 && texts.every(entries => entries.length === 1) && events.every(event => event.error === undefined);
  return html`<div aria-live="polite" aria-busy=${String(!done)}>${isText ? html`<p class="answer-text">${shown(texts.map(([[, text]]) => text).join(''))}</p>`
    : html`<pre class="code wrap" tabindex="0">${shown(events.map(event => JSON.stringify(event)).join('\n'))}</pre>`}</div>`;
}

function Result({ result, labelled }) {
  if (!result) return html`<p class="empty">The answer appears here.</p>`;
  const { error, answer, events, labels, took, first, done } = result;
  const time = took === undefined ? '' : events ? `${events.length} ${events.length === 1 ? 'response' : 'responses'} in ${seconds(took)}${first === undefined ? '' : `, the first after ${seconds(first)}`}` : `answered in ${seconds(took)}`;
  return html`<${Problem} error=${error}/>
    ${events && html`<${Stream} events=${events} done=${done}/>`}
    ${answer && answer.outputs.map(output => html`<${Output} key=${output.name} output=${output} labels=${labels?.get(output.name)} isLabelled=${labelled.includes(output.name)}/>`)}
    ${time && html`<p class="muted" role="status">${time}, as seen by this browser</p>`}`;
}

const LANGUAGES = [['curl', 'curl'], ['http', 'Python, HTTP'], ['grpc', 'Python, gRPC'], ['javascript', 'JavaScript'], ['rust', 'Rust']];
const WRITERS = { curl, javascript, rust };

/** A request in other languages, to copy. */
export function Snippet({ make, languages = LANGUAGES }) {
  const [language, setLanguage] = useState(languages[0][0]);
  let text;
  try {
    text = make(language);
  } catch (error) {
    text = `The form has no complete request yet: ${error.message}`;
  }
  return html`<section class="card" aria-labelledby="request"><div class="card-head"><h2 id="request">The same request</h2>
      <${Segments} label="Language" options=${languages} value=${language} onChange=${setLanguage}/><${Copy} text=${text}/></div>
    <pre class="code" tabindex="0" aria-label="Request">${shown(text)}</pre></section>`;
}

const WAYS = [['infer', 'One answer'], ['stream', 'Streamed']];

export function Try({ metadata, config, version, request: link }) {
  const inputs = useMemo(() => inputsOf(metadata, config), [metadata, config]);
  const batched = (config?.max_batch_size ?? 0) > 0;
  const decoupled = config?.model_transaction_policy?.decoupled === true;
  const begin = kept => new Map(inputs.map(input => [input.name, restored(kept, input, initial(input, batched))]));
  const shared = useMemo(() => link && decoded(link), [link]);
  const [states, setStates] = useState(() => begin(shared));
  const [parameters, setParameters] = useState(typeof shared?.parameters === 'string' ? shared.parameters : config?.sequence_batching ? '{"sequence_id": 1, "sequence_start": true, "sequence_end": true}' : '');
  const [how, setHow] = useState(WAYS.some(([way]) => way === shared?.how) ? shared.how : decoupled ? 'stream' : 'infer');
  const [result, setResult] = useState();
  const [busy, setBusy] = useState(false);
  const cancel = useRef();
  useEffect(() => () => cancel.current?.abort(), []);
  const labelled = (config?.output ?? []).filter(output => output.label_filename).map(output => output.name);
  const streamed = how === 'stream';
  const set = (name, change) => setStates(before => new Map(before).set(name, { ...before.get(name), ...change }));

  const open = kept => {
    setStates(begin(kept));
    setParameters(typeof kept?.parameters === 'string' ? kept.parameters : '');
    setHow(WAYS.some(([way]) => way === kept?.how) ? kept.how : how);
    setResult(undefined);
  };

  // The inputs with their values, and the parameters.
  const collect = () => ({
    inputs: inputs.filter(input => states.get(input.name).used).map(input => {
      const state = states.get(input.name);
      return { ...input, shape: state.sizes, values: valuesOf(input, state) };
    }),
    parameters: parameters.trim() ? JSON.parse(parameters) : {},
  });

  const send = async event => {
    event.preventDefault();
    const began = performance.now();
    const since = () => (performance.now() - began) / 1000;
    const control = new AbortController();
    cancel.current = control;
    setBusy(true);
    setResult(undefined);
    try {
      const { inputs, parameters } = collect();
      const path = modelPath(metadata.name, version);
      if (streamed) {
        const answer = await request(`${path}/generate_stream`, { method: 'POST', body: JSON.stringify(flatBody(inputs, parameters)), signal: control.signal });
        const events = [];
        let first;
        for await (const data of eventsOf(answer)) {
          first ??= since();
          events.push(JSON.parse(data));
          setResult({ events: [...events], first, took: since() });
        }
        setResult({ events, first, took: since(), done: true });
      } else {
        const [body, length] = bodyOf(inputs, parameters);
        const answer = await answerOf(await request(`${path}/infer`, { method: 'POST', body, signal: control.signal, headers: { 'Inference-Header-Content-Length': String(length) } }));
        const took = since();
        setResult({ answer, took });
        if (labelled.length) {
          // Without the names of its classes, the answer is shown all the same.
          const labels = await labelsOf(path, inputs, parameters, labelled).catch(() => undefined);
          setResult({ answer, took, labels });
        }
      }
    } catch (error) {
      if (error.name !== 'AbortError') setResult(before => ({ ...before, error, took: before?.took }));
    } finally {
      setBusy(false);
    }
  };

  // Values may be many, so they are made once for each change of the form.
  const collected = useMemo(() => {
    try {
      return collect();
    } catch (error) {
      return { error };
    }
  }, [inputs, states, parameters]);
  const snippet = language => {
    if (collected.error) throw collected.error;
    const { inputs, parameters } = collected;
    const known = { origin: location.origin, host: language === 'grpc' ? location.hostname : location.host, model: metadata.name, version, inputs, parameters, streamed, flat: streamed ? flatBody(inputs, parameters) : undefined };
    return Object.hasOwn(WRITERS, language) ? WRITERS[language](known) : tritonclient(language, known);
  };

  return html`<div class="two">
    <form class="card" onSubmit=${send} aria-labelledby="form">
      <div class="card-head"><h2 id="form">Inputs</h2>
        <${Segments} label="Kind of request" options=${WAYS} value=${how} onChange=${setHow}/></div>
      <div class="card-body">
        ${inputs.map(input => html`<${Input} key=${input.name} input=${input} state=${states.get(input.name)} set=${change => set(input.name, change)}/>`)}
        ${!inputs.length && html`<p class="muted">This model has no inputs.</p>`}
        <label class="input"><span class="input-head"><span>Parameters</span><span class="muted">optional, a JSON object</span></span>
          <input class="mono" value=${parameters} placeholder='{"priority": 1}' onInput=${event => setParameters(event.target.value)}/></label>
        <div class="row"><button class="primary" disabled=${busy}>${busy ? 'Waiting…' : 'Send'}</button>
          ${busy && html`<button type="button" onClick=${() => cancel.current?.abort()}>Cancel</button>`}</div>
      </div>
    </form>
    <section class="card" aria-labelledby="answer"><div class="card-head"><h2 id="answer">Answer</h2></div><div class="card-body stack"><${Result} result=${result} labelled=${labelled}/></div></section>
  </div>
  <${Kept} model=${metadata.name} version=${version} request=${saved(states, parameters, how)} open=${open}/>
  <${Snippet} make=${snippet}/>`;
}
