// Create elements and format numbers. Text is inserted as text only: nothing here parses markup. Characters that no
// reader sees, and those that reverse text, are written out: what an agent wrote must not look like something else.

const SVG = 'http://www.w3.org/2000/svg';

/** h('a', {href: '#/', class: 'x', onclick: f}, 'text', child, [more]). Null children and attributes are omitted. */
export function h(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name === 'style') Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? '' : SPOKEN.has(name) ? visible(String(value)) : value);
  }
  const shown = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  element.append(...shown.map((child) => (child instanceof Node ? child : visible(String(child)))));
  return element;
}

const SPOKEN = new Set(['title', 'aria-label']);
// Control and format characters, as on the command line (inspect/text.py).
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{110bd}\u{110cd}\u{13430}-\u{1343f}\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0001}\u{e0020}-\u{e007f}]/gu;

/** The text with such characters written out, such as \x1b and \u202e. */
export function visible(text) {
  return text.replaceAll('\r\n', '\n').replace(UNSEEN, (letter) => {
    const code = letter.codePointAt(0).toString(16);
    if (code.length <= 2) return `\\x${code.padStart(2, '0')}`;
    return code.length <= 4 ? `\\u${code.padStart(4, '0')}` : `\\U${code.padStart(8, '0')}`;
  });
}

/** As the command line writes it: 0.004 s, 1.53 s, 42.1 s, 3m20s, 2h05m; a dash for null. */
export function seconds(value) {
  if (value === null || value === undefined) return '–';
  if (value < 0) return `-${seconds(-value)}`;
  if (value < 0.0995) return `${value.toFixed(3)} s`;
  if (value < 9.995) return `${value.toFixed(2)} s`;
  if (value < 99.95) return `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes}m${String(whole % 60).padStart(2, '0')}s`;
  return `${Math.floor(minutes / 60)}h${String(minutes % 60).padStart(2, '0')}m`;
}

export function age(since) {
  const value = Date.now() / 1000 - since;
  for (const [unit, size] of [['day', 86400], ['hour', 3600], ['minute', 60]]) {
    if (value >= size) return `${count(Math.floor(value / size), unit)} ago`;
  }
  return `${Math.max(0, Math.floor(value))} s ago`;
}

export function instant(value) {
  return new Date(value * 1000).toLocaleString(undefined, {dateStyle: 'medium', timeStyle: 'medium'});
}

export function count(number, thing) {
  const many = /(ch|s|x)$/.test(thing) ? 'es' : 's';
  return `${number.toLocaleString('en')} ${thing}${number === 1 ? '' : many}`;
}

export function size(bytes) {
  if (bytes === null) return '';
  if (bytes < 1000) return `${bytes} B`;
  return bytes < 1e6 ? `${(bytes / 1000).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

export function chip(text, look = '') {
  return h('span', {class: `chip ${look}`}, text);
}

export const STATUS_LOOKS = {
  running: 'accent live', waiting: 'accent', done: 'good', failed: 'bad', interrupted: 'bad', 'in doubt': 'bad', cancelled: 'bad',
};

/** Facts as pairs; those whose value is null or "" are omitted. */
export function facts(pairs) {
  const told = pairs.filter(([, value]) => value !== null && value !== undefined && value !== '');
  return h('dl', {class: 'facts'}, told.map(([name, value]) => [h('dt', {}, name), h('dd', {}, value)]));
}

/** Recorded JSON with line breaks, without the codec's tags; other text as it is. */
export function pretty(text) {
  try {
    return laid(JSON.parse(text));
  } catch {
    return text;
  }
}

/** The same for a parsed value. */
export function laid(recorded) {
  const value = unwrapped(recorded);
  return typeof value === 'string' && value ? value : JSON.stringify(value, null, 2);
}

/** The outcomes of commands inside a recorded value: {command, out, err, note}. */
export function commandsIn(text) {
  const found = [];
  const look = (value) => {
    if (value === null || typeof value !== 'object') return;
    if (value.$ === 'dataclass' && value.t === RUN_RESULT) found.push(outcome(value.v));
    else Object.values(value).forEach(look);
  };
  look(JSON.parse(text ?? 'null'));
  return found;
}

const RUN_RESULT = 'ramify.sandboxes.contract:RunResult';

function outcome(result) {
  const told = [result.exit_code ? `exit ${result.exit_code}` : '', result.timed_out ? 'timed out' : '', result.truncated ? 'output cut' : ''];
  return {command: result.command, out: decoded(result.stdout_bytes), err: decoded(result.stderr_bytes), note: told.filter(Boolean).join(', ')};
}

function decoded(bytes) {
  if (!bytes?.v) return '';
  return new TextDecoder().decode(Uint8Array.from(atob(bytes.v), (letter) => letter.charCodeAt(0)));
}

function unwrapped(value) {
  if (Array.isArray(value)) return value.map(unwrapped);
  if (value === null || typeof value !== 'object') return value;
  if ('$' in value && 'v' in value) return unwrapped(value.v);
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, unwrapped(item)]));
}
