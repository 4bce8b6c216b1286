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

const until = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Yields the pieces of an async iterable at the pacer's times. The source is read on while a piece is held. */
export async function* paced(pieces, pacer, now = () => performance.now(), sleep = until, tokens = tokensToRead) {
  const held = [];
  let wake = () => {};
  let over = false;
  let left = false;
  let failure = null;
  const source = pieces[Symbol.asyncIterator]();
  (async () => {
    try {
      for (let next = await source.next(); !next.done && !left; next = await source.next()) {
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
    for (;;) {
      if (held.length === 0) {
        if (over) break;
        await new Promise((resolve) => { wake = resolve; });
        continue;
      }
      const [at, piece] = held.shift();
      const wait = at - now();
      if (wait > 0) await sleep(wait);
      yield piece;
    }
    if (failure) throw failure.error;
  } finally {
    left = true;
    source.return?.()?.catch?.(() => {}); // nobody is left to hear of it
  }
}
