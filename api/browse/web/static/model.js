// A run in the page: what the server has sent so far, and the rows of its branch graph.
//
// The graph is an outline: the rows of a branch are together, in their order, and the branches of a fork are below it,
// one lane to the right, before the parent's later rows. So a lane is a depth: 10,000 states of a wide search need as
// many lanes as the search is deep. The timeline shows what happened at the same time.

const HIDDEN = new Set(['PREFORK', 'BARRIER', 'RELEASE', 'COMMAND', 'ENTER']);
const MANY = 600; // rows from which released branches are folded unless a person says otherwise

/** A table's rows as objects. */
function* objects({fields, rows}) {
  for (const row of rows) yield Object.fromEntries(fields.map((name, at) => [name, row[at]]));
}

export class RunModel {
  constructor(id) {
    this.id = id;
    this.cursor = '';
    this.unfolded = new Map(); // "branch#seq" of a fork → whether a person wants its released branches seen
    this.fold = null; // null: by size
    this.clear();
  }

  clear() {
    this.moments = new Map();
    this.checkpoints = new Map();
    this.lines = new Map();
    this.effects = [];
    this.run = null;
    this.version = 0;
  }

  /** Takes a page in; whether anything but the run's own row has changed. */
  take(page) {
    const before = this.run;
    if (page.whole) this.clear();
    this.cursor = page.cursor;
    this.run = page.run;
    for (const one of objects(page.moments)) this.moments.set(one.seq, one);
    for (const one of objects(page.checkpoints)) this.checkpoints.set(one.id, one);
    for (const one of objects(page.lines)) this.lines.set(one.path, one);
    const effects = JSON.stringify(page.effects) !== JSON.stringify(this.effects);
    this.effects = page.effects;
    const news = page.whole || page.moments.rows.length || page.checkpoints.rows.length || page.lines.rows.length || effects
      || before?.status !== page.run.status;
    if (news) {
      this.version += 1;
      this.outlined = null;
    }
    return Boolean(news);
  }

  get folds() {
    return this.fold ?? this.moments.size > MANY;
  }

  setFold(value) {
    this.fold = value;
    this.unfolded.clear();
    this.outlined = null;
  }

  toggle(key) {
    this.unfolded.set(key, !(this.unfolded.get(key) ?? !this.folds));
    this.outlined = null;
  }

  /** The rows, and where each sequence number stands among them. */
  get outline() {
    this.outlined ??= outline(this);
    return this.outlined;
  }

  /** Sequence number → the checkpoint that it made. */
  checkpointAt(seq) {
    const {rows, places} = this.outline;
    const found = rows[places.get(seq)];
    return found?.checkpoint ?? [...this.checkpoints.values()].find((one) => one.seq === seq) ?? null;
  }
}

function outline(model) {
  const byBranch = new Map();
  const put = (branch, row) => (byBranch.get(branch) ?? byBranch.set(branch, []).get(branch)).push(row);
  const made = new Map();
  for (const one of model.checkpoints.values()) made.set(`${one.branch}#${one.seq}`, one);
  const moments = [...model.moments.values()].sort((a, b) => a.seq - b.seq);
  for (const one of made.values()) {
    if (!model.moments.has(one.seq)) put(one.branch, {kind: 'STATE', seq: one.seq, moment: null, checkpoint: one});
  }
  for (const moment of moments) {
    const checkpoint = made.get(`${moment.branch}#${moment.seq}`) ?? null;
    const before = byBranch.get(moment.branch)?.at(-1);
    if (moment.kind === 'SEAL' && before?.moment?.name === moment.name && !before.checkpoint && checkpoint) {
      before.checkpoint = checkpoint; // a step and the state after it are one row
      before.also = moment.seq;
    } else if (checkpoint || !(HIDDEN.has(moment.kind) || moment.kind === 'SEAL')) {
      put(moment.branch, {kind: moment.kind, seq: moment.seq, moment, checkpoint});
    }
  }
  const children = new Map();
  for (const line of model.lines.values()) {
    if (line.parent === null) continue;
    (children.get(line.parent) ?? children.set(line.parent, []).get(line.parent)).push(line);
  }
  for (const list of byBranch.values()) list.sort((a, b) => a.seq - b.seq);
  const rows = [];
  const walk = (path, lanes, state) => { // state: the last one above, which the branch's first is expected to come from
    const mine = [...(byBranch.get(path) ?? []).map((row) => ({at: row.seq, row})),
      ...(children.get(path) ?? []).map((line) => ({at: line.forked_at, line}))];
    // a fork's own row before its branches; merged branches last, next to the row that merges them
    mine.sort((a, b) => a.at - b.at || (a.line ? 1 : 0) - (b.line ? 1 : 0)
      || (a.line && b.line ? (a.line.end === 'merged') - (b.line.end === 'merged') || byNumber(a.line.path, b.line.path) : 0));
    const line = model.lines.get(path);
    const depth = lanes.length;
    const last = mine.length - 1;
    const folded = new Map();
    let first = depth > 0;
    mine.forEach((item, index) => {
      const on = index < last;
      if (item.row) {
        const {checkpoint} = item.row;
        const parent = checkpoint?.parents[0];
        const from = parent && parent !== state && model.checkpoints.has(parent) ? parent : null;
        rows.push({...item.row, branch: path, depth, line, lanes, first, on, ends: index === last, from});
        state = checkpoint?.id ?? state;
        first = false;
        return;
      }
      const key = `${path}#${item.at}`;
      const seen = model.unfolded.get(key) ?? !model.folds;
      if (item.line.end === 'released' && !seen) {
        const fold = folded.get(key);
        if (fold) {
          fold.branches += 1;
          fold.states += statesBelow(item.line.path);
          fold.lanes = [...lanes, on];
        } else {
          const row = {kind: 'FOLD', key, seq: null, branch: item.line.path, line: item.line, depth: depth + 1, first: true,
            on: false, ends: true, lanes: [...lanes, on], branches: 1, states: statesBelow(item.line.path)};
          folded.set(key, row);
          rows.push(row);
        }
        return;
      }
      walk(item.line.path, [...lanes, on], state);
    });
  };
  const statesBelow = (path) => (byBranch.get(path) ?? []).filter((row) => row.checkpoint).length
    + (children.get(path) ?? []).reduce((sum, line) => sum + statesBelow(line.path), 0);
  walk('root', [], null);
  const places = new Map();
  rows.forEach((row, index) => {
    if (row.seq !== null) places.set(row.seq, index);
    if (row.also) places.set(row.also, index);
  });
  return {rows, places, depth: rows.reduce((most, row) => Math.max(most, row.depth), 0)};
}

const {compare: byNumber} = new Intl.Collator('en', {numeric: true});
