// The branch graph: nodes and lines to the left of a list of rows. A filled node is a stored state.

import {chip, count, h, seconds, svg} from './dom.js';
import {RowList} from './list.js';

const ROW = 26;
const LANES = 14; // that are drawn at full width; deeper ones share what there is

export class Graph {
  constructor(model, {select, compare}) {
    this.model = model;
    this.select = select;
    this.box = h('div', {class: 'rows', id: 'graph'});
    this.folds = h('button', {type: 'button', onclick: () => this.setFold()}, 'Fold released');
    this.told = h('span', {class: 'grow clip'});
    this.element = h('section', {class: 'left', 'aria-label': 'Branch graph'},
      h('div', {class: 'tools'}, this.told, this.folds), this.box);
    this.list = new RowList(this.box, ROW, {
      label: 'Rows of the branch graph', draw: (row, index) => this.row(row, index), pick: (index) => this.pick(index),
      key: (event, index) => {
        const row = this.model.outline.rows[index];
        if (event.key === 'd' && row?.checkpoint) compare(row.checkpoint);
        else if (event.key === 'Enter' && row?.kind === 'FOLD') this.toggle(row);
        else return false;
        return true;
      },
    });
  }

  pick(index) {
    const row = this.model.outline.rows[index];
    if (row.kind === 'FOLD') this.toggle(row);
    else this.select(row.seq);
  }

  toggle(row) {
    this.model.toggle(row.key);
    this.show(this.seq, this.base);
  }

  setFold() {
    this.model.setFold(!this.model.folds);
    this.show(this.seq, this.base);
  }

  show(seq, base, reveal = false) {
    this.seq = seq;
    this.base = base;
    let {rows, places, depth} = this.model.outline;
    if (reveal && seq !== null && !places.has(seq) && this.model.folds) { // it is in a folded branch
      this.model.setFold(false);
      ({rows, places, depth} = this.model.outline);
    }
    this.pitch = Math.max(3, Math.min(16, (LANES * 16) / (depth + 1)));
    this.width = Math.ceil(this.pitch * (depth + 1)) + 14;
    const at = places.get(seq) ?? -1;
    this.lit = litUntil(this.model, rows, at);
    const states = this.model.checkpoints.size;
    this.told.textContent = `${count(states, 'state')} on ${count(this.model.lines.size, 'branch')}`;
    this.folds.setAttribute('aria-pressed', this.model.folds);
    this.list.set(rows, at);
    if (reveal && at >= 0) this.list.reveal(at);
  }

  row(row, index) {
    const drawn = this.lines(row, index);
    if (row.kind === 'FOLD') {
      const said = `${count(row.branches, 'released branch')} · ${count(row.states, 'state')}`;
      return h('div', {class: 'row minor', 'aria-expanded': 'false', title: 'Unfold'}, drawn,
        h('span', {class: 'name grow clip'}, `▸ ${said}`));
    }
    const {moment, checkpoint, line} = row;
    const took = moment && !['SEAL', 'FORK', 'RELEASE'].includes(moment.kind) ? seconds(moment.ended_at - moment.started_at) : '';
    const looks = ['row', checkpoint ? '' : 'minor', line?.end === 'released' ? 'released' : '',
      checkpoint && checkpoint.id === this.base?.id ? 'base' : ''];
    return h('div', {class: looks.join(' '), title: row.branch}, drawn,
      h('span', {class: 'name clip'}, nameOf(row)),
      h('span', {class: 'text soft clip grow'}, moment && moment.summary !== nameOf(row) ? moment.summary : ''),
      marks(row), h('span', {class: 'took'}, took),
      h('span', {class: 'id mono'}, checkpoint ? checkpoint.id.slice(0, 8) : ''));
  }

  lines(row, index) {
    const x = (lane) => 12 + lane * this.pitch;
    const mid = ROW / 2;
    const here = x(row.depth);
    const drawn = svg('svg', {width: this.width, height: ROW, 'aria-hidden': 'true'});
    const stroke = (d, lit) => drawn.append(svg('path', {d, class: lit ? 'lane on' : 'lane'}));
    const parts = row.branch.split('/');
    const until = (lane) => this.lit.get(parts.slice(0, lane + 1).join('/')) ?? -1;
    const mine = until(row.depth);
    if (row.first) {
      const from = x(row.depth - 1);
      const bend = Math.min(6, here - from);
      stroke(`M${from} ${mid - bend}Q${from} ${mid} ${from + bend} ${mid}H${here}`, mine >= index);
    } else if (index > 0) stroke(`M${here} 0V${mid}`, mine >= index);
    row.lanes.forEach((goes, lane) => { // after the bend, which would cut a line that leads on
      if (goes) stroke(`M${x(lane)} 0V${ROW}`, until(lane) > index);
    });
    if (row.first && (!row.lanes.at(-1) || until(row.depth - 1) === index)) {
      stroke(`M${x(row.depth - 1)} 0V${mid - Math.min(6, this.pitch)}`, until(row.depth - 1) >= index);
    }
    if (row.on) stroke(`M${here} ${mid}V${ROW}`, mine > index);
    else if (row.line?.end === 'merged' && row.ends && row.depth > 0) {
      const to = x(row.depth - 1);
      const bend = Math.min(6, here - to);
      stroke(`M${here} ${mid}V${ROW - bend}Q${here} ${ROW - 1} ${here - bend} ${ROW - 1}H${to}`, false);
    }
    drawn.append(...node(row, here, mid, mine >= index));
    return drawn;
  }
}

/** Branch → the last row of its line on the path to the selected row. */
function litUntil(model, rows, at) {
  const lit = new Map();
  if (at < 0) return lit;
  let path = rows[at].branch;
  lit.set(path, at);
  for (let line = model.lines.get(path); line?.parent; line = model.lines.get(path)) {
    const began = rows.findIndex((row) => row.first && row.branch === path);
    path = line.parent;
    lit.set(path, began);
  }
  return lit;
}

function node(row, x, y, lit) {
  const failed = row.moment && !['done', 'asked', 'begun', 'not asked again'].includes(row.moment.status);
  const look = ['node', row.checkpoint ? 'state' : '', row.kind === 'FOLD' ? 'fold' : '', failed ? 'failed' : '',
    row.moment?.reused_from ? 'reused' : '', lit ? 'on' : ''].join(' ');
  if (failed) {
    return [svg('circle', {cx: x, cy: y, r: 5, class: look}),
      svg('path', {d: `M${x - 2} ${y - 2}l4 4m0 -4l-4 4`, class: 'cross'})];
  }
  if (row.kind === 'CALL_LLM') return [svg('path', {d: `M${x} ${y - 4}l4 4l-4 4l-4 -4z`, class: look})];
  if (row.kind === 'MERGE') {
    return [svg('circle', {cx: x, cy: y, r: 5.5, class: `node ${lit ? 'on' : ''}`}),
      svg('circle', {cx: x, cy: y, r: 2.6, class: look})];
  }
  if (row.kind === 'FORK') return [svg('rect', {x: x - 3.2, y: y - 3.2, width: 6.4, height: 6.4, rx: 1.5, class: look})];
  return [svg('circle', {cx: x, cy: y, r: row.checkpoint ? 4.2 : 3, class: look})];
}

export function nameOf(row) {
  const {moment, checkpoint, kind} = row;
  if (!moment) return checkpoint?.label || 'state';
  if (kind === 'CALL_LLM') return 'model call';
  if (kind === 'RUN') return moment.name;
  if (kind === 'SEAL' || kind === 'BREAK') return checkpoint?.label || moment.name;
  return kind.toLowerCase();
}

function marks(row) {
  const {moment, line} = row;
  const told = [];
  if (row.from) told.push(chip(`from ${row.from.slice(0, 8)}`)); // it went back: not the state above it
  if (moment?.reused_from) told.push(chip('reused'));
  if (moment && moment.status !== 'done') told.push(chip(moment.status, {asked: 'accent', begun: 'accent', 'not asked again': ''}[moment.status] ?? 'bad'));
  if (moment?.call?.met === false) told.push(chip('late', 'bad'));
  if (row.ends && line?.end === 'merged') told.push(chip('merged', 'accent'));
  if (row.ends && line?.end === 'released') told.push(chip('released'));
  return told;
}
