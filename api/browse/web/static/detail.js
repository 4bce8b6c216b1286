// The details of one row: the step, the state after it, a model call's prompt and answer.

import {address, ask} from './api.js';
import {changesView, effectsView} from './changes.js';
import {chip, commandsIn, count, facts, h, instant, laid, pretty, seconds} from './dom.js';
import {callParts} from './gantt.js';
import {nameOf} from './graph.js';

const NO_ARGUMENTS = JSON.stringify([[], {}], null, 2);

export class Detail {
  constructor(model, {link, compare}) {
    this.model = model;
    this.link = link;
    this.compare = compare;
    this.element = h('section', {class: 'detail', 'aria-label': 'What is selected', tabindex: -1});
    this.asking = null;
  }

  /** Shows the row of that sequence number; the run itself for null. */
  async show(seq, base) {
    this.asking?.abort();
    const asking = new AbortController();
    this.asking = asking;
    this.seq = seq;
    if (seq === null) {
      this.element.replaceChildren(...this.runView());
      return;
    }
    const {rows, places} = this.model.outline;
    const moment = this.model.moments.get(seq) ?? null;
    const checkpoint = this.model.checkpointAt(seq);
    const row = rows[places.get(seq)] ?? {kind: moment?.kind, moment, checkpoint};
    const under = this.model.moments.get(row.seq) ?? moment;
    if (!under && !checkpoint) {
      this.element.replaceChildren(h('p', {class: 'empty'}, `This run has no row ${seq}.`));
      return;
    }
    const run = this.model.id;
    const questions = [
      under?.call ? ask(address('runs', run, 'calls', under.seq), asking.signal).then((call) => callView(call, under)) : null,
      under && !under.call ? ask(address('runs', run, 'moments', under.seq), asking.signal).then(momentView) : null,
      checkpoint ? ask(address('runs', run, 'states', checkpoint.id), asking.signal).then((state) => this.stateView(state)) : null,
    ];
    const head = this.head(row, under, checkpoint, base);
    this.element.setAttribute('aria-busy', 'true');
    try {
      const parts = await Promise.all(questions);
      if (this.asking === asking) this.element.replaceChildren(...[head, ...parts].flat(Infinity).filter(Boolean));
    } catch (error) {
      if (error.name === 'AbortError') return;
      this.element.replaceChildren(...head, h('p', {class: 'box'}, error.message));
    } finally {
      if (this.asking === asking) this.element.removeAttribute('aria-busy');
    }
    if (this.asking === asking) this.element.scrollTop = 0;
  }

  head(row, moment, checkpoint, base) {
    const failed = moment && !['done', 'asked', 'begun', 'not asked again'].includes(moment.status);
    const line = this.model.lines.get((checkpoint ?? moment).branch);
    return [
      h('h2', {}, nameOf({...row, moment})),
      h('div', {class: 'chips'},
        chip((moment?.kind ?? 'state').toLowerCase().replace('_', ' ')), checkpoint ? chip('state kept', 'accent') : null,
        failed ? chip(moment.status, 'bad') : null, moment?.reused_from ? chip(`reused from ${moment.reused_from}`) : null,
        line && line.end !== 'open' ? chip(`branch ${line.end}`) : null),
      facts([
        ['branch', h('code', {}, (checkpoint ?? moment).branch)],
        ['began', moment ? `${instant(moment.started_at)}, row ${moment.seq}` : null],
        ['took', moment && moment.kind !== 'FORK' ? seconds(moment.ended_at - moment.started_at) : null],
        ['checkpoint', checkpoint ? h('code', {}, checkpoint.id) : null],
      ]),
      checkpoint ? h('div', {class: 'actions'},
        h('button', {type: 'button', id: 'mark', 'aria-pressed': base?.id === checkpoint.id, onclick: () => this.compare(checkpoint)},
          base?.id === checkpoint.id ? 'Marked: now choose another state' : base ? 'Compare with the marked state' : 'Compare with another state…')) : null,
    ];
  }

  runView() {
    const {run} = this.model;
    return [
      h('h2', {}, run.name),
      h('div', {class: 'chips'}, chip(run.status), run.failed ? chip(count(run.failed, 'failed attempt'), 'bad') : null),
      facts([
        ['run', h('code', {}, run.id)], ['workflow', run.workflow], ['workspace', run.workspace || 'none'], ['sandbox', run.sandbox],
        ['began', instant(run.created_at)],
        ['deadline', run.deadline_s === null ? `none, ${seconds(run.consumed_s)} used` : `${seconds(run.deadline_s)}, ${seconds(run.consumed_s)} used`],
        ['steps', `${run.steps} done, ${run.reused} of them reused`],
        ['worlds', `${run.forks} forked, ${run.merges} merged`], ['model', count(run.llm_calls, 'call')],
      ]),
      pretty(run.arguments) === NO_ARGUMENTS ? null : [h('h3', {}, 'Arguments'), h('pre', {class: 'box'}, pretty(run.arguments))],
      run.result === null ? null : [h('h3', {}, 'Result'), h('pre', {class: 'box'}, pretty(run.result))],
      run.error ? [h('h3', {}, 'Error'), h('pre', {class: 'box'}, run.error)] : null,
      this.model.effects.length ? [h('h3', {}, 'Irreversible effects'), effectsView(this.model.effects)] : null,
    ].flat(Infinity).filter(Boolean);
  }

  stateView(state) {
    if (state.gone) return [h('h3', {}, 'State'), h('p', {class: 'box'}, `Deleted: ${state.gone}`)];
    const calls = state.moments.filter((seq) => this.model.moments.get(seq)?.call);
    const kept = state.processes;
    const names = Object.keys(state.environment);
    return [
      state.changes ? [h('p', {class: 'soft', style: {marginTop: '16px'}}, 'Against ', this.link(state.since.seq, state.since.label || state.since.id.slice(0, 8)), ', the state that it came from:'),
        changesView(state.changes)] : h('p', {class: 'soft'}, 'The original workspace.'),
      keysView(state.channels ?? {}),
      calls.length ? [h('h3', {}, `Model calls since the previous state`), h('ul', {}, calls.map((seq) => {
        const {call} = this.model.moments.get(seq);
        return h('li', {}, this.link(seq, `row ${seq}`), ` ${call.prompt_tokens} tokens in, ${call.completion_tokens} out, ${seconds(call.end_s)}`);
      }))] : null,
      state.effects.length ? [h('h3', {}, 'Irreversible effects so far'), effectsView(state.effects)] : null,
      h('h3', {}, 'The world'),
      facts([
        ['snapshot', h('code', {}, state.checkpoint.snapshot.slice(0, 16))], ['layers', state.layers], ['folder', state.folder || '.'],
        ['shell', kept.shell_kept ? 'kept whole' : 'a fresh one'],
        ['processes', [kept.tier, kept.dropped ? `, ${kept.dropped} not kept` : '', kept.reason ? `: ${kept.reason}` : ''].join('')],
        ['take it out', h('code', {}, `ramify checkout ${state.checkpoint.id.slice(0, 12)} DIR`)],
      ]),
      names.length ? h('details', {class: 'file'}, h('summary', {}, `${count(names.length, 'variable')} set`),
        h('table', {}, h('tbody', {}, names.map((name) => h('tr', {}, h('td', {class: 'mono'}, name), h('td', {class: 'mono'}, state.environment[name])))))) : null,
    ];
  }
}

function keysView(channels) {
  const keys = Object.entries(channels);
  return keys.length ? [h('h3', {}, 'State'), keys.map(([name, value]) => h('div', {class: 'box'},
    h('span', {class: 'who'}, name), h('pre', {class: 'tall'}, laid(value))))] : null;
}

function momentView(moment) {
  const attrs = Object.entries(moment.attrs);
  const commands = commandsIn(moment.result);
  return [
    commands.length ? [h('h3', {}, count(commands.length, 'command')), commands.map((one) => h('div', {class: 'box'},
      h('pre', {}, h('span', {class: 'soft'}, '$ '), h('strong', {}, one.command)), one.out ? h('pre', {}, one.out) : null,
      one.err ? h('pre', {class: 'minus'}, one.err) : null, one.note ? h('span', {class: 'who'}, one.note) : null))] : null,
    moment.error ? [h('h3', {}, 'Error'), h('pre', {class: 'box'}, moment.error)] : null,
    moment.result !== null && moment.result !== 'null' && !commands.length ? [h('h3', {}, 'Result'), h('pre', {class: 'box'}, pretty(moment.result))] : null,
    attrs.length ? h('details', {class: 'file', style: {marginTop: '14px'}}, h('summary', {}, `Attributes (${moment.op})`), facts(attrs)) : null,
  ];
}

function callView(call, moment) {
  const took = moment.call;
  const settings = Object.entries(call.settings).filter(([, value]) => value !== 'none');
  return [
    h('h3', {}, 'Time'),
    h('div', {class: 'parts', role: 'img', 'aria-label': 'Queue, first token and answer in proportion'},
      callParts(took, took.end_s).map(([kind, share]) => h('i', {class: kind, style: {width: `${share * 100}%`}}))),
    facts([
      ['queued', seconds(took.queued_s)], ['first token', seconds(took.first_token_s)], ['end', seconds(took.end_s)],
      ['deadline', took.deadline_s === null ? 'none: best effort' : [seconds(took.deadline_s), ' left on arrival: ', took.met ? 'met' : 'missed']],
      ['experience', took.qoe === null ? null : `${took.qoe.toFixed(2)} of 1 while it was read`],
      ['tokens', `${took.prompt_tokens} in, ${took.completion_tokens} out`], ['stage', took.note === 'none' ? null : took.note],
      ['model', `${call.model}, ${settings.map(([name, value]) => `${name} ${value}`).join(', ')}`],
    ]),
    h('h3', {}, 'Messages'),
    call.messages.map((message) => h('div', {class: 'box'}, h('span', {class: 'who'}, message.role), h('pre', {}, message.content))),
    h('h3', {}, 'Answer'),
    h('div', {class: 'box answer'}, h('span', {class: 'who'}, `assistant · ${call.finish_reason}`), h('pre', {}, call.answer)),
    call.tokens.length ? [h('h3', {}, 'Likely tokens'), h('table', {}, h('tbody', {}, call.tokens.slice(0, 40).map((one) => h('tr', {},
      h('td', {class: 'mono'}, JSON.stringify(one.token)),
      h('td', {class: 'soft'}, one.others.slice(0, 8).map(([token, logprob]) => `${token.trim() || JSON.stringify(token)} ${(Math.exp(logprob) * 100).toFixed(0)}%`).join(' · '))))))] : null,
  ];
}
