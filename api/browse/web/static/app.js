// Show the view that the address names, and keep it up to date. Every view has an address:
//   #/                          all runs
//   #/inbox                     what waits for a person, in all runs
//   #/RUN/graph/ROW             the branch graph, a row of it selected (or none)
//   #/RUN/time/ROW              the timeline
//   #/RUN/plan                  the plan compared with what happened
//   #/RUN/diff/STATE/RUN/STATE  two states compared
//   #/RUN/search/WORDS          search results

import {address, ask, tell} from './api.js';
import {Detail} from './detail.js';
import {STATUS_LOOKS, chip, h, visible} from './dom.js';
import {Gantt} from './gantt.js';
import {Graph} from './graph.js';
import {RunModel} from './model.js';
import {diffPage, inboxPage, planPage, runsPage, searchPage} from './pages.js';

const BUSY_MS = 700; // between two looks at a run that goes on
const IDLE_MS = 4000;
const TABS = [['graph', 'Branches'], ['time', 'Timeline'], ['plan', 'Plan']];

const bar = document.getElementById('bar');
const main = document.getElementById('main');
const alert = document.getElementById('alert');
const live = document.getElementById('live');

let model = null; // of the run that is looked at
let views = null; // {graph, time, detail} of that run
let base = null; // {run, id, …}: the state that a person marked to compare with
let shown = null; // what stands in main, so that it is left alone where only a selection moves
let asking = null; // ends when another view is wanted

function route() {
  const [run = '', view = 'graph', ...rest] = location.hash.replace(/^#\/?/, '').split('/').map(decodeURIComponent);
  return run === 'inbox' ? {run: '', view: 'inbox', rest} : {run, view, rest};
}

async function go() {
  asking?.abort();
  asking = new AbortController();
  const {signal} = asking;
  const {run, view, rest} = route();
  try {
    if (run && model?.id !== run) await open(run, signal);
    if (!run) model = views = null;
    signal.throwIfAborted();
    drawBar();
    if (view === 'inbox') await fill('inbox', () => inboxPage(signal, answered));
    else if (!run) await fill('runs', () => runsPage(signal));
    else if (view === 'plan') await fill(`plan ${run}`, () => planPage(run, signal));
    else if (view === 'diff') await fill(location.hash, () => diffPage([run, ...rest], signal));
    else if (view === 'search') await fill(location.hash, () => searchPage(run, rest[0] ?? '', signal));
    else showSplit(view === 'time' ? 'time' : 'graph', rest[0] ? Number(rest[0]) : null);
    said(null);
  } catch (error) {
    if (error.name === 'AbortError') return;
    shown = null;
    main.replaceChildren();
    drawBar();
    said(error);
  }
}

async function open(run, signal) {
  const fresh = new RunModel(run);
  fresh.take(await ask(address('runs', run), signal));
  model = fresh;
  views = null;
  shown = null;
}

async function fill(name, make) {
  const element = await make();
  const top = shown === name ? main.firstElementChild?.scrollTop ?? 0 : 0;
  main.replaceChildren(element);
  element.scrollTop = top;
  shown = name;
  if (['runs', 'inbox'].includes(name)) document.title = 'Ramify';
}

/** Whether the answer was stored. The server parses the JSON, because JavaScript would round large numbers. */
async function answered(item, text) {
  try {
    const stored = await tell('answers', {id: item.id, text});
    await go();
    live.textContent = `Question ${stored.id} is answered: ramify resume ${stored.run} continues it`;
    return true;
  } catch (error) {
    said(error);
    return false;
  }
}

function showSplit(kind, seq) {
  views ??= {
    graph: new Graph(model, {select, compare}), time: new Gantt(model, {select}), detail: new Detail(model, {link, compare}),
  };
  const fresh = shown !== `${model.id} ${kind}`;
  if (fresh) {
    const split = h('div', {class: 'split'}, views[kind].element, views.detail.element);
    main.replaceChildren(split);
    shown = `${model.id} ${kind}`;
  }
  const moved = fresh || views.detail.seq !== seq;
  views[kind].show(seq, base, moved);
  if (moved || seq === null) views.detail.show(seq, base);
  if (fresh) views[kind].box.focus({preventScroll: true});
}

function select(seq) {
  const {view} = route();
  const to = `#/${model.id}/${view === 'time' ? 'time' : 'graph'}/${seq}`;
  history.replaceState(null, '', to); // a walk along the rows is no trail to go back on
  go();
}

function link(seq, text) {
  return h('a', {href: `#/${model.id}/graph/${seq}`}, text);
}

/** Marks a state; if one is marked already, compares the two. */
function compare(checkpoint) {
  if (base && base.id !== checkpoint.id) {
    location.hash = `#/${address(base.run, 'diff', base.id, model.id, checkpoint.id)}`;
    base = null;
    return;
  }
  base = base ? null : {...checkpoint, run: model.id};
  live.textContent = base ? 'Marked. Choose another state to compare with.' : 'No state is marked.';
  views.detail.seq = undefined;
  go();
}

function drawBar() {
  const {view, rest} = route();
  const focused = document.activeElement?.id === 'search';
  const mark = h('a', {class: 'mark', href: '#/'}, h('img', {src: 'icon.svg', alt: ''}), 'Ramify');
  const inbox = h('a', {href: '#/inbox', 'aria-current': view === 'inbox' ? 'page' : null}, 'Inbox');
  if (!model) {
    bar.replaceChildren(mark, h('span', {class: 'grow'}), h('nav', {'aria-label': 'All runs'}, inbox));
    return;
  }
  const {run} = model;
  document.title = visible(`${run.name} ${run.id} · Ramify`);
  const selected = ['graph', 'time'].includes(view) && rest[0] ? `/${rest[0]}` : '';
  const tabs = h('nav', {'aria-label': 'Views of the run'}, TABS.map(([name, text]) => h('a', {
    href: `#/${run.id}/${name}${name === 'plan' ? '' : selected}`, 'aria-current': view === name ? 'page' : null}, text)));
  const marked = base ? h('button', {type: 'button', title: 'Forget the marked state', onclick: () => compare(base)}, `marked ${base.id.slice(0, 8)} ✕`) : null;
  const status = h('span', {id: 'status'}, chip(run.status, STATUS_LOOKS[run.status]));
  const head = [mark, h('span', {class: 'faint'}, '/'), h('span', {class: 'clip'}, h('strong', {}, run.name), ' ', h('code', {class: 'soft'}, run.id)), status, tabs,
    h('span', {class: 'grow'}), marked, h('nav', {'aria-label': 'All runs'}, inbox)];
  const search = document.getElementById('search') ?? searchBox();
  if (!focused) search.value = view === 'search' ? rest[0] ?? '' : '';
  const keep = bar.contains(search) && focused;
  if (keep) {
    for (const child of [...bar.children]) if (child !== search) child.remove();
    search.before(...head.filter(Boolean));
  } else bar.replaceChildren(...head.filter(Boolean), search);
}

function searchBox() {
  return h('input', {id: 'search', type: 'search', placeholder: 'Search this run  /', 'aria-label': 'Search this run', onkeydown: (event) => {
    if (event.key === 'Enter') location.hash = `#/${model.id}/search/${encodeURIComponent(event.target.value)}`;
    if (event.key === 'Escape') event.target.blur();
  }});
}

function said(error) {
  alert.hidden = error === null;
  alert.textContent = visible(error?.message ?? '');
}

/** Polls for changes of the current view. */
async function watch() {
  let pause = IDLE_MS;
  if (!document.hidden) {
    try {
      if (model) {
        const at = model;
        const page = await ask(`${address('runs', at.id)}?since=${encodeURIComponent(at.cursor)}`);
        if (at === model) {
          const news = at.take(page);
          if (at.run.status === 'running') pause = BUSY_MS;
          if (news) {
            live.textContent = `${at.checkpoints.size} states, ${at.run.status}`;
            const {view} = route();
            if (['diff', 'search'].includes(view)) drawBar();
            else go();
          }
        }
      } else if (shown === 'runs' || (shown === 'inbox' && !isBeingAnswered())) {
        pause = 2000;
        await go();
      }
      if (!alert.hidden && model && shown) said(null);
    } catch (error) {
      if (error.name !== 'AbortError') said(error);
    }
  }
  setTimeout(watch, pause);
}

/** Whether a person is writing an answer, which a new list would delete. */
function isBeingAnswered() {
  return [...document.querySelectorAll('input.answer')].some((input) => input.value || input === document.activeElement);
}

addEventListener('hashchange', go);
addEventListener('keydown', (event) => {
  if (event.target.matches('input, textarea') || event.ctrlKey || event.metaKey || event.altKey || !model) return;
  const to = {g: 'graph', t: 'time', p: 'plan'}[event.key];
  if (event.key === '/') {
    event.preventDefault();
    document.getElementById('search').focus();
  } else if (to) location.hash = `#/${model.id}/${to}`;
});
go().then(() => setTimeout(watch, BUSY_MS));
