// A conversation with a language model, through OpenAI's interface.

import { html, useEffect, useRef, useState } from './vendor/preact-htm.js';
import { eventsOf, request } from './api.js';
import { seconds, shown } from './format.js';
import { Problem } from './parts.js';
import { chatCurl, chatPython } from './snippets.js';
import { Snippet } from './try.js';

const LANGUAGES = [['python', 'Python'], ['curl', 'curl']];

/** A message of the conversation. */
function Message({ role, content, note }) {
  const who = { user: 'You', assistant: 'Model', system: 'Instructions' }[role];
  return html`<div class="message ${role}"><h3>${who}</h3><p class="answer-text">${shown(content)}</p>${note && html`<p class="muted">${note}</p>`}</div>`;
}

export function Chat({ name }) {
  const [messages, setMessages] = useState([]);
  const [text, setText] = useState('');
  const [system, setSystem] = useState('');
  const [answer, setAnswer] = useState();
  const [error, setError] = useState();
  const cancel = useRef();
  useEffect(() => () => cancel.current?.abort(), []);

  const send = async event => {
    event.preventDefault();
    if (!text.trim() || answer !== undefined) return;
    const asked = [...messages, { role: 'user', content: text }];
    const control = new AbortController();
    cancel.current = control;
    setMessages(asked);
    setText('');
    setError(undefined);
    setAnswer('');
    const began = performance.now();
    let content = '';
    let first;
    try {
      const all = [...(system.trim() ? [{ role: 'system', content: system }] : []), ...asked.map(({ role, content }) => ({ role, content }))];
      const body = JSON.stringify({ model: name, messages: all, stream: true });
      const headers = { 'Content-Type': 'application/json' };
      for await (const data of eventsOf(await request('/v1/chat/completions', { method: 'POST', body, headers, signal: control.signal }))) {
        if (data === '[DONE]') break;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Error(chunk.error.message ?? String(chunk.error));
        const piece = chunk.choices?.[0]?.delta?.content;
        if (piece) {
          first ??= (performance.now() - began) / 1000;
          content += piece;
          setAnswer(content);
        }
      }
    } catch (problem) {
      if (problem.name !== 'AbortError') setError(problem);
    }
    if (content) {
      const note = `the first word after ${seconds(first)}, all in ${seconds((performance.now() - began) / 1000)}`;
      setMessages([...asked, { role: 'assistant', content, note }]);
    }
    setAnswer(undefined);
  };
  const keys = event => {
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) send(event);
  };
  // What a message in the form would send now.
  const snippet = language => {
    const whole = [...(system.trim() ? [{ role: 'system', content: system }] : []), ...messages.map(({ role, content }) => ({ role, content })), { role: 'user', content: text.trim() || 'Hello' }];
    return (language === 'curl' ? chatCurl : chatPython)({ origin: location.origin, model: name, messages: whole });
  };
  return html`<section class="card" aria-labelledby="chat"><div class="card-head"><h2 id="chat">Conversation</h2>
      <button type="button" disabled=${!messages.length || answer !== undefined} onClick=${() => setMessages([])}>Start again</button></div>
    <div class="card-body stack">
      <div class="messages" role="log" aria-label="Messages" aria-busy=${String(answer !== undefined)}>
        ${messages.map((message, index) => html`<${Message} key=${index} ...${message}/>`)}
        ${answer !== undefined && html`<${Message} role="assistant" content=${answer || '…'}/>`}
        ${!messages.length && html`<p class="empty">Messages and answers appear here. Nothing is kept.</p>`}
      </div>
      <${Problem} error=${error}/>
      <form class="stack" onSubmit=${send}>
        <label class="input"><span class="input-head"><span>Instructions</span><span class="muted">optional</span></span>
          <input value=${system} placeholder="Answer in one sentence." onInput=${event => setSystem(event.target.value)}/></label>
        <label class="input"><span class="input-head"><span>Message</span><span class="muted">Enter sends, Shift and Enter begins a line</span></span>
          <textarea rows="3" value=${text} onInput=${event => setText(event.target.value)} onKeyDown=${keys}></textarea></label>
        <div class="row"><button class="primary" disabled=${answer !== undefined || !text.trim()}>${answer !== undefined ? 'Answering…' : 'Send'}</button>
          ${answer !== undefined && html`<button type="button" onClick=${() => cancel.current?.abort()}>Stop</button>`}</div>
      </form>
    </div></section>
    <${Snippet} languages=${LANGUAGES} make=${snippet}/>`;
}
