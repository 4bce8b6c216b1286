// Gives out the pieces of a stream at a reader's pace (ramify.serving.pacing, for browsers and Node). ES module.

/** The times at which pieces are given out, in milliseconds. `tbtMs`: for each token; `firstAt`: none goes out before. */
export class Pacer {
  constructor(tbtMs, firstAt = -Infinity) {
    if (!(tbtMs > 0 && Number.isFinite(tbtMs))) throw new RangeError(`a pace needs milliseconds above 0, not ${tbtMs}`);
    this.tbtMs = tbtMs;
    this.nextAt = firstAt;
  }

  /** When a piece that came at `at` is given out. */
  due(at, tokens = 1) {
    const given = Math.max(at, this.nextAt);
    this.nextAt = given + tokens * this.tbtMs;
    return given;
  }
}

/** For how many tokens a piece counts: servers may put several into one. */
export function tokensToRead(piece) {
  if (typeof piece !== 'string') return 1;
  return piece.length > 12 ? piece.length / 4.4 : Number(piece.length > 0);
}

/** Resolves after so many milliseconds, or as soon as `signal` is aborted. */
function until(ms, signal) {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener('abort', end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    signal.addEventListener('abort', end);
  });
}

/**
 * Yields the pieces of an async iterable at the pacer's times. The source is read on while a piece is held.
 *
 * `return()`, `throw()` and an abort of `signal` end it at once, also while a piece is held or the source is silent:
 * what is held is dropped, the source is closed, and a `next()` that waits is answered. After an abort that is the
 * signal's reason, as an error. If the source fails, what came before is given out first.
 *
 * `now`: a clock in milliseconds. `sleep`: resolves after so many; its second argument is aborted when nobody waits.
 * `tokens`: for how many tokens a piece counts.
 */
export function paced(
  pieces,
  pacer,
  {signal, now = () => performance.now(), sleep = until, tokens = tokensToRead} = {},
) {
  const source = pieces[Symbol.asyncIterator]();
  const leaving = new AbortController();
  const close = async () => source.return?.();
  leaving.signal.addEventListener('abort', () => close().catch(() => {})); // nobody hears of it
  if (signal?.aborted) leaving.abort();
  signal?.addEventListener('abort', () => leaving.abort(), {signal: leaving.signal});
  const given = atPace(source, pacer, {now, sleep, tokens, signal}, leaving);
  return {
    next: () => given.next(),
    return(value) {
      leaving.abort();
      return given.return(value);
    },
    throw(error) {
      leaving.abort();
      return given.throw(error);
    },
    [Symbol.asyncIterator]() {
      return this;
    },
  };
}

async function* atPace(source, pacer, {now, sleep, tokens, signal}, leaving) {
  const held = [];
  let wake = () => {}; // ends the wait for a piece
  let stop = () => {}; // ends the wait for its time
  let over = false;
  let failure = null;
  leaving.signal.addEventListener('abort', () => {
    wake();
    stop();
  });
  (async () => {
    try {
      for (let next = await source.next(); !next.done && !leaving.signal.aborted; next = await source.next()) {
        held.push([pacer.due(now(), tokens(next.value)), next.value]);
        wake();
      }
    } catch (error) {
      failure = {error};
    }
    over = true;
    wake();
  })();
  try {
    while (!leaving.signal.aborted && !(over && held.length === 0)) {
      if (held.length === 0) {
        await new Promise((resolve) => { wake = resolve; });
        continue;
      }
      const [at, piece] = held.shift();
      const wait = at - now();
      if (wait > 0) {
        await new Promise((resolve, reject) => {
          stop = resolve;
          sleep(wait, leaving.signal).then(resolve, reject);
        });
      }
      if (!leaving.signal.aborted) yield piece;
    }
    if (signal?.aborted) throw signal.reason;
    if (failure && !leaving.signal.aborted) throw failure.error;
  } finally {
    leaving.abort();
  }
}
