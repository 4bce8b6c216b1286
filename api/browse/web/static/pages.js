// The views that fill the page: all runs, two states compared, the plan compared with what happened, search results.

import {address, ask} from './api.js';
import {changesView, effectsView} from './changes.js';
import {STATUS_LOOKS, age, chip, count, h, pretty, seconds} from './dom.js';

const page = (...children) => h('div', {class: 'page', tabindex: 0}, children.flat(Infinity).filter(Boolean));

export async function runsPage(signal) {
  const runs = await ask('runs', signal);
  const heads = ['Run', 'Workflow', 'Status', 'Began'].map((head) => h('th', {}, head));
  const counts = ['Steps', 'Forks', 'Reused', 'Failed', 'Model calls', 'Used', 'Deadline'].map((head) => h('th', {class: 'num'}, head));
  const row = (run) => {
    const to = `#/${run.id}`;
    const numbers = [run.steps, run.forks, run.reused, run.failed, run.llm_calls].map((value) => h('td', {class: 'num'}, value || h('span', {class: 'faint'}, '0')));
    return h('tr', {class: 'link', onclick: () => { location.hash = to; }},
      h('td', {}, h('a', {href: to, class: 'mono'}, run.id)), h('td', {title: run.workflow}, run.name),
      h('td', {}, chip(run.status, STATUS_LOOKS[run.status])), h('td', {class: 'soft'}, age(run.created_at)), numbers,
      h('td', {class: 'num'}, seconds(run.consumed_s)), h('td', {class: 'num soft'}, run.deadline_s === null ? '–' : seconds(run.deadline_s)));
  };
  return page(h('h1', {}, 'Runs'), runs.length === 500 ? h('p', {class: 'soft'}, 'The newest 500: ', h('code', {}, 'ramify ls -n 0'), ' lists all.') : null, runs.length
    ? h('table', {}, h('thead', {}, h('tr', {}, heads, counts)), h('tbody', {}, runs.map(row)))
    : h('p', {class: 'empty'}, 'No runs yet: start one with ', h('code', {}, 'ramify run FILE.py:NAME')));
}

/** What waits for a person. answered(item, text) stores an answer; it rejects if the answer is refused. */
export async function inboxPage(signal, answered) {
  const items = await ask('inbox', signal);
  const form = (item) => {
    const input = h('input', {type: 'text', class: 'answer', placeholder: 'JSON, or a text as it is', 'aria-label': `Answer to question ${item.id}`,
      onkeydown: (event) => { if (event.key === 'Enter') send(); }});
    const button = h('button', {type: 'button', onclick: () => send()}, 'Answer');
    async function send() {
      button.disabled = input.disabled = true;
      if (!await answered(item, input.value)) button.disabled = input.disabled = false;
    }
    return h('div', {class: 'answering'}, input, button);
  };
  const row = (item) => h('tr', {},
    h('td', {}, chip(item.kind, item.kind === 'doubt' ? 'bad' : 'accent'), item.id ? [' ', h('code', {class: 'soft'}, item.id)] : null),
    h('td', {}, h('a', {href: `#/${item.run}`, class: 'mono'}, item.run), ' ', item.workflow, item.branch === 'root' ? null : [' ', h('span', {class: 'mono faint'}, item.branch)]),
    h('td', {class: 'soft'}, age(item.since)), h('td', {}, h('pre', {class: 'tall'}, item.question)),
    h('td', {}, item.id ? form(item) : item.commands.map((command) => h('div', {}, h('code', {}, command)))));
  return page(h('h1', {}, 'Inbox'), items.length
    ? h('table', {id: 'inbox'}, h('thead', {}, h('tr', {}, ['Waits', 'Run', 'Since', 'Question', 'Answer'].map((head) => h('th', {}, head)))), h('tbody', {}, items.map(row)))
    : h('p', {class: 'empty'}, 'Nothing waits for a person.'));
}

export async function diffPage([run, state, otherRun, otherState], signal) {
  const said = await ask(address('diff', run, state, otherRun, otherState), signal);
  const side = (of, one, role) => h('div', {class: 'box'}, h('span', {class: 'who'}, role),
    h('a', {href: `#/${of}/graph/${one.seq}`}, one.label || 'state'), ' ', h('code', {class: 'soft'}, one.id.slice(0, 12)),
    h('div', {class: 'soft clip', title: one.branch}, of === run && run === otherRun ? one.branch : `${of} · ${one.branch}`));
  const only = (effects, which) => (effects.length ? [h('h3', {}, `Effects only in the ${which}`), effectsView(effects)] : null);
  return page(h('h1', {}, 'What differs'),
    h('div', {class: 'pair'}, side(run, said.before, 'before'),
      h('a', {href: `#/${address(otherRun, 'diff', otherState, run, state)}`, title: 'Swap the two states', 'aria-label': 'Swap the two states'}, '⇄'),
      side(otherRun, said.after, 'after')),
    changesView(said.changes),
    said.keys.length ? [h('h3', {}, `${count(said.keys.length, 'key')} of the state changed`), h('table', {}, h('tbody', {}, said.keys.map((key) => h('tr', {},
      h('td', {class: 'mono'}, key.name), [key.before, key.after].map((value) => h('td', {}, value === null ? h('span', {class: 'faint'}, 'not set') : h('pre', {class: 'tall'}, pretty(value))))))))] : null,
    only(said.effects_before, 'first'), only(said.effects_after, 'second'));
}

export async function planPage(run, signal) {
  const plan = await ask(address('runs', run, 'plan'), signal);
  const ops = plan.operations;
  const longest = Math.max(1e-9, ...ops.map((op) => Math.max(op.predicted_s ?? 0, op.took_s ?? 0)));
  const bar = (value, look) => h('i', {class: look, style: {width: value === null ? '0' : `${(value / longest) * 100}%`, visibility: value === null ? 'hidden' : 'visible'}});
  const row = (op) => h('tr', {class: op.done ? '' : 'skipped'},
    h('td', {class: 'mono'}, op.op), h('td', {}, op.kind.toLowerCase().replace('_', ' ')), h('td', {}, op.step ?? ''),
    h('td', {class: 'soft'}, op.effect ?? ''), h('td', {class: 'mono soft'}, op.site ?? ''),
    h('td', {class: 'num'}, op.done ? `${op.done}×` : 'skipped'), h('td', {class: 'num'}, op.reused || ''),
    h('td', {class: 'num'}, op.failed ? chip(op.failed, 'bad') : ''), h('td', {class: 'num'}, op.snapshots || ''),
    h('td', {class: 'num soft'}, op.predicted_s === null ? '' : seconds(op.predicted_s)), h('td', {class: 'num'}, op.took_s === null ? '' : seconds(op.took_s)),
    h('td', {}, h('div', {class: 'bars', 'aria-hidden': 'true'}, bar(op.predicted_s, 'said'), bar(op.took_s, 'did'))));
  const head = (text, look = '') => h('th', {class: look}, text);
  const skipped = ops.filter((op) => !op.done).length;
  return page(h('h1', {}, 'The plan compared with what happened'),
    h('p', {class: 'soft'}, `${count(ops.length, 'operation')}, ${skipped} of them skipped`, plan.passes.length ? ` · passes: ${plan.passes.join(', ')}` : '',
      plan.stage_error === null ? '' : ` · stages of model calls: predicted and actual differ by ${Math.round(plan.stage_error * 100)}% in the median`),
    h('table', {id: 'plan'}, h('thead', {}, h('tr', {}, ['Operation', 'Kind', 'Step', 'Effect', 'In the code'].map((text) => head(text)),
      ['Done', 'Reused', 'Failed', 'Snapshots', 'Predicted', 'Took'].map((text) => head(text, 'num')), head(''))), h('tbody', {}, ops.map(row))),
    plan.breaks.length ? [h('h3', {}, 'Where the compiler could not analyze the code'), h('ul', {}, plan.breaks.map((text) => h('li', {}, text)))] : null);
}

export async function searchPage(run, words, signal) {
  const hits = words.trim() ? await ask(`${address('runs', run, 'search')}?q=${encodeURIComponent(words)}`, signal) : [];
  const row = (hit) => h('tr', {class: 'link', onclick: () => { location.hash = `#/${run}/graph/${hit.seq}`; }},
    h('td', {class: 'num'}, h('a', {href: `#/${run}/graph/${hit.seq}`}, hit.seq)), h('td', {}, hit.name), h('td', {class: 'soft'}, hit.where),
    h('td', {}, marked(hit.excerpt, words.trim())), h('td', {class: 'mono faint'}, hit.branch));
  return page(h('h1', {}, `${count(hits.length, 'row')} with “${words}”`), hits.length === 200 ? h('p', {class: 'soft'}, 'The first 200; add words to narrow the search.') : null,
    h('table', {id: 'hits'}, h('tbody', {}, hits.map(row))));
}

function marked(text, words) {
  const at = text.toLowerCase().indexOf(words.toLowerCase());
  if (at < 0) return text;
  return [text.slice(0, at), h('mark', {}, text.slice(at, at + words.length)), text.slice(at + words.length)];
}
