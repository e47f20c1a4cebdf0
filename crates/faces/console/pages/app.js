// The frame of the console: where one is, and whether the server answers.

import { html, render, useLayoutEffect, useRef, useState } from './vendor/preact-htm.js';
import { Activity } from './activity.js';
import { dateTime, seconds, shown } from './format.js';
import { start, useLive } from './live.js';
import { Logs } from './logs.js';
import { Model } from './model.js';
import { Overview } from './overview.js';
import { Settings } from './settings.js';

const THEME = 'nereid-theme';
const dark = matchMedia('(prefers-color-scheme: dark)');

function chosenTheme() {
  try {
    return localStorage.getItem(THEME);
  } catch {
    return null;
  }
}

/** Applies the chosen theme, or else the system's. */
function applyTheme() {
  const theme = chosenTheme() ?? (dark.matches ? 'dark' : 'light');
  document.documentElement.dataset.theme = theme;
  // Charts are drawn with the colours of the theme.
  dispatchEvent(new CustomEvent('theme'));
  return theme;
}

applyTheme();
dark.addEventListener('change', applyTheme);

function ThemeButton() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme);
  useLayoutEffect(() => {
    const follow = () => setTheme(document.documentElement.dataset.theme);
    addEventListener('theme', follow);
    return () => removeEventListener('theme', follow);
  }, []);
  const other = theme === 'dark' ? 'light' : 'dark';
  const change = () => {
    try {
      localStorage.setItem(THEME, other);
    } catch {
      // Without storage the choice cannot be kept.
    }
    applyTheme();
  };
  return html`<button type="button" class="plain" onClick=${change}>${other === 'dark' ? 'Dark' : 'Light'}</button>`;
}

const PAGES = [['', 'Overview'], ['activity', 'Activity'], ['logs', 'Logs'], ['settings', 'Settings']];

/** The parts of the address behind `#`: the path, decoded, and the query. */
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, '').split('?', 2);
  const parts = path.split('/').map(part => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { parts, query: new URLSearchParams(query) };
}

function Page({ at: { parts, query } }) {
  switch (parts[0]) {
    case '': return html`<${Overview}/>`;
    case 'models': return html`<${Model} key=${parts[1]} name=${parts[1] ?? ''} tab=${parts[2]} version=${query.get('version') ?? undefined} request=${query.get('request') ?? undefined}/>`;
    case 'activity': return html`<${Activity}/>`;
    case 'logs': return html`<${Logs} model=${query.get('model') || undefined}/>`;
    case 'settings': return html`<${Settings}/>`;
    default: return html`<h1>No such page</h1><p><a href="#/">Overview</a></p>`;
  }
}

function Connection({ live }) {
  const { online, server } = live;
  const [word, look] = !online ? ['No answer', 'failed'] : !server ? ['Connecting', 'loading']
    : server.stopping ? ['Stopping', 'loading'] : server.ready ? ['Ready', 'ready'] : ['Not ready', 'loading'];
  return html`<span class="pulse" role="status"><span class="dot ${look}"></span>${word}</span>`;
}

function App() {
  const [at, setAt] = useState(place());
  const main = useRef();
  const live = useLive();
  useLayoutEffect(() => {
    const follow = () => {
      const next = place();
      setAt(before => {
        // Only another page takes the focus, not another tab of it.
        if (before.parts.slice(0, 2).join('/') !== next.parts.slice(0, 2).join('/')) {
          main.current?.focus();
          scrollTo(0, 0);
        }
        return next;
      });
    };
    addEventListener('hashchange', follow);
    return () => removeEventListener('hashchange', follow);
  }, []);
  const here = at.parts[0] === 'models' ? '' : at.parts[0];
  const { server, online } = live;
  const skip = event => {
    event.preventDefault();
    main.current.focus();
  };
  return html`<a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <header class="bar"><div class="bar-inner">
      <a class="brand" href="#/"><svg viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="7" fill="#0d6f79"/>
        <path d="M6 12.5c3.3 0 3.3-3 6.7-3s3.3 3 6.6 3 3.4-3 6.7-3M6 18.5c3.3 0 3.3-3 6.7-3s3.3 3 6.6 3 3.4-3 6.7-3M6 24.5c3.3 0 3.3-3 6.7-3s3.3 3 6.6 3 3.4-3 6.7-3" fill="none" stroke="#fff" stroke-width="2.2" stroke-linecap="round"/></svg>Nereid</a>
      <nav aria-label="Pages">${PAGES.map(([key, name]) => html`<a key=${key} href="#/${key}" aria-current=${here === key ? 'page' : undefined}>${name}</a>`)}</nav>
      <div class="bar-end"><${Connection} live=${live}/><${ThemeButton}/></div>
    </div></header>
    <main id="main" tabindex="-1" ref=${main}>
      ${!online && html`<div class="note warn" role="alert">The server does not answer. What is shown is the last it reported; the page tries again every few seconds.</div>`}
      <${Page} at=${at}/>
    </main>
    <footer>${server && html`<span>Server ${shown(server.name)}</span><span>version ${shown(server.version)}</span>
      <span>started ${dateTime(server.started)}, ${seconds((server.now - server.started) / 1000)} ago</span>`}</footer>`;
}

start();
render(html`<${App}/>`, document.getElementById('app'));
