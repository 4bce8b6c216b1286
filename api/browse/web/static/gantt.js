// The timeline: steps and model calls as bars, calls in their parts, with their deadlines and the workflow's.

import {h, seconds} from './dom.js';
import {RowList} from './list.js';

const ROW = 22;
const LABEL = 240;
const SHOWN = new Set(['RUN', 'CALL_LLM', 'MERGE', 'BREAK', 'PREFORK']);

export class Gantt {
  constructor(model, {select}) {
    this.model = model;
    this.window = null; // [from, to] in seconds of the run; null: all of it
    this.withDeadline = false;
    this.axis = h('div', {class: 'axis', 'aria-hidden': 'true'});
    this.box = h('div', {class: 'rows gantt', id: 'gantt'});
    this.dueButton = h('button', {type: 'button', onclick: () => this.fit(!this.withDeadline)}, 'Deadline in sight');
    const button = (text, label, act) => h('button', {type: 'button', 'aria-label': label, title: label, onclick: act}, text);
    this.element = h('section', {class: 'left', 'aria-label': 'Timeline'},
      h('div', {class: 'tools'},
        h('div', {class: 'legend grow'}, ...[['work', 'step'], ['queue', 'queued'], ['prefill', 'to the first token'],
          ['decode', 'answering'], ['due', 'deadline']].map(([key, text]) => h('span', {class: `k-${key}`}, text))),
        this.dueButton, button('−', 'Zoom out', () => this.zoom(2)), button('+', 'Zoom in', () => this.zoom(0.5)),
        button('All', 'The whole run', () => this.fit(false))),
      this.axis, this.box);
    this.list = new RowList(this.box, ROW, {
      label: 'Steps and model calls by their start', draw: (row) => this.row(row),
      pick: (index) => select(this.list.rows[index].seq),
      key: (event) => {
        const by = {'+': 0.5, '-': 2}[event.key];
        const shift = {ArrowLeft: -0.25, ArrowRight: 0.25}[event.key];
        if (by) this.zoom(by);
        else if (shift) this.pan(shift);
        return Boolean(by || shift);
      },
    });
    this.box.addEventListener('wheel', (event) => {
      if (!event.ctrlKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;
      event.preventDefault();
      if (event.ctrlKey) {
        const track = this.box.clientWidth - LABEL;
        const at = (event.clientX - this.box.getBoundingClientRect().left - LABEL) / track;
        this.zoom(Math.exp(event.deltaY / 200), Math.min(1, Math.max(0, at)));
      } else this.pan(event.deltaX / 600);
    }, {passive: false});
  }

  get extent() {
    const run = this.model.run;
    const from = this.model.start;
    let to = Math.max(1e-3, this.last - from) * 1.06;
    if (this.withDeadline && run.deadline_s !== null) to = Math.max(to, run.deadline_s * 1.04);
    return [0, to];
  }

  fit(withDeadline) {
    this.withDeadline = withDeadline;
    this.window = null;
    this.show(this.seq);
  }

  zoom(by, at = 0.5) {
    const [from, to] = this.window ?? this.extent;
    const middle = from + (to - from) * at;
    const width = Math.max(1e-3, (to - from) * by);
    this.window = [Math.max(0, middle - width * at), middle + width * (1 - at)];
    this.show(this.seq);
  }

  pan(share) {
    const [from, to] = this.window ?? this.extent;
    const by = Math.max(-from, (to - from) * share);
    this.window = [from + by, to + by];
    this.show(this.seq);
  }

  show(seq, base, reveal = false) {
    this.seq = seq;
    const rows = [...this.model.moments.values()].filter((one) => SHOWN.has(one.kind) && one.ended_at > 0)
      .sort((a, b) => a.started_at - b.started_at || a.seq - b.seq);
    this.model.start = Math.min(this.model.run.created_at, rows[0]?.started_at ?? Infinity);
    this.last = rows.reduce((most, one) => Math.max(most, one.ended_at), this.model.start);
    [this.from, this.to] = this.window ?? this.extent;
    const due = this.model.run.deadline_s;
    this.dueButton.hidden = due === null;
    this.dueButton.setAttribute('aria-pressed', this.withDeadline);
    const exact = rows.findIndex((one) => one.seq === seq);
    const at = exact >= 0 ? exact : rows.findIndex((one) => one.seq + 1 === seq); // a state's step stands before it
    this.drawAxis(due);
    this.list.set(rows, at);
    for (const old of this.box.querySelectorAll('.wall, .grid')) old.remove();
    const height = `${Math.max(rows.length * ROW, 1)}px`;
    const line = (look, value) => this.list.inner.prepend(h('div', {class: look,
      style: {left: `calc(${LABEL}px + (100% - ${LABEL}px) * ${this.share(value)})`, height}}));
    for (const tick of this.ticks) line('grid', tick);
    if (due !== null && due >= this.from && due <= this.to) line('wall', due);
    if (reveal && at >= 0) this.list.reveal(at);
  }

  share(value) {
    return (value - this.from) / (this.to - this.from);
  }

  drawAxis(due) {
    const step = nice((this.to - this.from) / 7);
    this.ticks = [];
    for (let at = Math.ceil(this.from / step) * step; at < this.to; at += step) this.ticks.push(at);
    const place = (value) => ({left: `${this.share(value) * 100}%`});
    const share = due === null ? null : this.share(due);
    const inside = share !== null && share >= 0 && share <= 1;
    const wide = this.axis.clientWidth || 400;
    const begin = inside ? share * wide - (share > 0.75 ? 110 : 0) : Infinity; // of the deadline's label, of 110 pixels
    const free = (tick) => this.share(tick) * wide > begin + 110 || this.share(tick) * wide + 45 < begin;
    const marks = this.ticks.map((tick) => h('span', {style: place(tick)}, free(tick) ? said(tick, step) : ''));
    if (due !== null) {
      const before = {right: `${(1 - share) * 100}%`, paddingRight: '4px', borderLeft: 'none', borderRight: '1px solid var(--bad)'};
      const look = !inside ? {right: '0', paddingRight: '8px'} : share > 0.75 ? before : place(due); // with room for its text
      marks.push(h('span', {class: 'deadline', style: look}, `deadline ${seconds(due)}${inside ? '' : ' ⟶'}`));
    }
    this.axis.replaceChildren(...marks);
  }

  row(moment) {
    const start = moment.started_at - this.model.start;
    const took = Math.max(0, moment.ended_at - moment.started_at);
    const call = moment.call;
    const percent = (value) => `${value * 100}%`;
    const width = took / (this.to - this.from);
    const parts = call && !moment.reused_from ? callParts(call, took) : [['work', 1]];
    const failed = moment.status === 'failed' || moment.status === 'undone';
    const look = `bar ${call ? '' : 'work'} ${failed ? 'failed' : ''} ${moment.reused_from ? 'reused' : ''}`;
    const track = h('div', {class: 'track'},
      h('div', {class: look, style: {left: percent(this.share(start)), width: percent(width)}},
        parts.map(([kind, share]) => h('i', {class: kind, style: {width: percent(share)}}))),
      h('span', {class: 'took', style: {left: percent(this.share(start + took))}}, seconds(took)));
    if (call && call.deadline_s !== null) {
      track.append(h('div', {class: `due ${call.met === false ? 'missed' : ''}`,
        style: {left: percent(this.share(start + call.deadline_s))}}));
    }
    const name = call ? 'model call' : moment.kind === 'RUN' ? moment.name : moment.kind.toLowerCase();
    const branch = moment.branch.split('/').slice(1).map((part) => part.split('.').at(-1)).join('.');
    return h('div', {class: 'row', title: `${moment.branch}: ${moment.summary}`,
      'aria-label': `${name}, began at ${seconds(start)}, took ${seconds(took)}`},
    h('div', {class: 'label'}, h('span', {class: 'clip'}, name), h('span', {class: 'soft clip'}, branch)), track);
  }
}

/** Shares of a call's bar: queued, to the first token, the answer. */
export function callParts(call, took) {
  const whole = Math.max(took, call.end_s, 1e-9);
  if (call.first_token_s === null) return [['decode', 1]];
  const queue = Math.min(call.queued_s ?? 0, call.first_token_s);
  return [['queue', queue / whole], ['prefill', (call.first_token_s - queue) / whole],
    ['decode', Math.max(0, whole - call.first_token_s) / whole]];
}

function nice(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
}

function said(tick, step) {
  return tick === 0 ? '0' : step >= 1 && tick >= 100 ? seconds(tick) : `${tick.toFixed(Math.max(0, -Math.floor(Math.log10(step))))} s`;
}
