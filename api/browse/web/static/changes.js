// The differences between two states: files with their diffs, variables, the folder.

import {count, h, size} from './dom.js';

const OPEN = 4; // files whose diffs are open at first
const LETTERS = {added: 'A', removed: 'D', modified: 'M', type: 'T', mode: 'P'};

export function changesView(changes) {
  const {files, outside, variables} = changes;
  const told = [];
  if (variables.length || changes.folder_before !== changes.folder_after) {
    const value = (text) => (text === null ? h('span', {class: 'faint'}, 'not set') : h('code', {}, text));
    told.push(h('h3', {}, 'Environment'), h('table', {}, h('tbody', {},
      changes.folder_before === changes.folder_after ? null
        : h('tr', {}, h('td', {}, 'folder'), h('td', {}, value(changes.folder_before || '.')), h('td', {}, value(changes.folder_after || '.'))),
      variables.map((one) => h('tr', {}, h('td', {class: 'mono'}, one.name), h('td', {}, value(one.before)), h('td', {}, value(one.after)))))));
  }
  told.push(h('h3', {}, files.length ? `${count(files.length, 'path')} changed` : 'No file changed'));
  return [...told, files.map((file, index) => fileView(file, index < OPEN)), outsideView(outside, changes.outside_count)];
}

function outsideView(outside, number) {
  if (!number) return null;
  const more = number - outside.length;
  return [h('h3', {}, `${count(number, 'path')} changed outside the workspace`),
    outside.map((file) => fileView(file, false)),
    more ? h('p', {class: 'soft'}, `and ${count(more, 'more path')}; \`ramify diff --name-only\` shows all`) : null];
}

function fileView(file, open) {
  const counts = file.added === null ? h('span', {class: 'faint'}, size(file.size_after ?? file.size_before))
    : [file.added ? h('span', {class: 'plus'}, `+${file.added}`) : null, file.removed ? h('span', {class: 'minus'}, `−${file.removed}`) : null];
  const box = h('details', {class: 'file', open: open && Boolean(file.patch)},
    h('summary', {}, h('span', {class: 'mono soft', title: file.change}, LETTERS[file.change] ?? '?'),
      h('span', {class: 'mono grow clip', title: file.path}, file.path), counts));
  let drawn = false;
  const draw = () => {
    if (drawn || !box.open) return;
    drawn = true;
    box.append(patchView(file));
  };
  box.addEventListener('toggle', draw);
  draw();
  return box;
}

function patchView(file) {
  if (file.patch === null) return h('p', {class: 'soft', style: {padding: '0 11px'}}, file.why || 'Nothing to compare: no contents.');
  const lines = file.patch.split('\n');
  if (lines.at(-1) === '') lines.pop();
  const head = lines.findIndex((line) => line.startsWith('@@'));
  const body = head < 0 ? lines.filter((line) => !line.startsWith('diff ')) : lines.slice(head);
  const look = (line) => (head < 0 ? 'meta' : line.startsWith('@@') ? 'hunk' : {'+': 'add', '-': 'del', '\\': 'meta'}[line[0]] ?? '');
  return h('div', {class: 'patch', tabindex: 0, role: 'region', 'aria-label': `Diff of ${file.path}`},
    body.map((line) => h('div', {class: look(line)}, line || ' ')),
    file.why ? h('div', {class: 'meta'}, file.why) : null);
}

export function effectsView(effects) {
  return h('table', {}, h('tbody', {}, effects.map((one) => h('tr', {}, h('td', {}, one.step),
    h('td', {}, one.attempt > 1 ? `${one.status} (attempt ${one.attempt})` : one.status),
    h('td', {class: 'mono faint clip'}, one.key), h('td', {class: 'soft'}, one.note)))));
}
