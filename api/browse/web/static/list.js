// A list of any length whose visible rows are the only elements. One tab stop; arrows move.

export class RowList {
  /** draw(row, index): the element of a row. pick(index): a person chose it. key(event, index): true if handled. */
  constructor(box, height, {draw, pick, key = () => false, label}) {
    this.box = box;
    this.height = height;
    this.draw = draw;
    this.pick = pick;
    this.rows = [];
    this.at = -1;
    this.shown = new Map();
    this.inner = document.createElement('div');
    this.inner.style.position = 'relative';
    box.append(this.inner);
    box.tabIndex = 0;
    box.setAttribute('role', 'listbox');
    box.setAttribute('aria-label', label);
    box.addEventListener('scroll', () => this.refresh(), {passive: true});
    // By position: an element that was redrawn between press and release is not the click's target.
    box.addEventListener('click', (event) => {
      const index = Math.floor((event.clientY - this.inner.getBoundingClientRect().top) / this.height);
      if (event.clientX < box.getBoundingClientRect().left + box.clientWidth && this.rows[index]) this.pick(index, event);
    });
    box.addEventListener('keydown', (event) => this.move(event, key));
    this.watch = new ResizeObserver(() => this.refresh());
    this.watch.observe(box);
  }

  set(rows, at) {
    this.rows = rows;
    this.at = at;
    this.inner.style.height = `${rows.length * this.height}px`;
    for (const element of this.shown.values()) element.remove();
    this.shown.clear();
    this.refresh();
  }

  refresh() {
    const top = this.box.scrollTop;
    const from = Math.max(0, Math.floor(top / this.height) - 8);
    const to = Math.min(this.rows.length, Math.ceil((top + this.box.clientHeight) / this.height) + 8);
    for (const [index, element] of this.shown) {
      if (index < from || index >= to) {
        element.remove();
        this.shown.delete(index);
      }
    }
    for (let index = to - 1; index >= from; index -= 1) {
      if (this.shown.has(index)) continue;
      const element = this.draw(this.rows[index], index);
      element.style.top = `${index * this.height}px`;
      element.dataset.at = index;
      element.id = `row-${index}`;
      element.setAttribute('role', 'option');
      element.setAttribute('aria-posinset', index + 1);
      element.setAttribute('aria-setsize', this.rows.length);
      element.setAttribute('aria-selected', index === this.at);
      const after = this.shown.get(index + 1); // in the order that they are read out in
      this.shown.set(index, element);
      if (after) after.before(element);
      else this.inner.append(element);
    }
    if (this.shown.has(this.at)) this.box.setAttribute('aria-activedescendant', `row-${this.at}`);
    else this.box.removeAttribute('aria-activedescendant');
  }

  reveal(index) {
    const top = index * this.height;
    if (top < this.box.scrollTop) this.box.scrollTop = top - this.height * 2;
    else if (top + this.height > this.box.scrollTop + this.box.clientHeight) {
      this.box.scrollTop = top - this.box.clientHeight + this.height * 3;
    }
  }

  move(event, key) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (key(event, this.at)) {
      event.preventDefault();
      return;
    }
    const page = Math.max(1, Math.floor(this.box.clientHeight / this.height) - 2);
    const step = {ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page}[event.key];
    const to = event.key === 'Home' ? 0 : event.key === 'End' ? this.rows.length - 1 : step && this.at + step;
    if (to === undefined || !this.rows.length) return;
    event.preventDefault();
    const index = Math.min(this.rows.length - 1, Math.max(0, to));
    this.pick(index, event);
    this.reveal(index);
  }
}
