// Return faults in the layout of a page: a list of sentences, empty if it is as it should be.
() => {
  const SECTIONS = "header, main, section, form, #head, #live, #plan, #blocks";
  const faults = [];
  const style = el => getComputedStyle(el);
  const name = el => el.tagName.toLowerCase() + (el.id && "#" + el.id) +
    (el.classList[0] ? "." + el.classList[0] : "") +
    (/^H\d/.test(el.tagName) ? ` "${el.textContent}"` : "");

  /** Children that have a box of their own in the flow. */
  const boxes = el => [...el.children].flatMap(child => {
    const { display, position } = style(child), box = child.getBoundingClientRect();
    if (display === "contents") return boxes(child);
    return !child.checkVisibility() || display === "none" || position === "absolute" || !box.width || !box.height ? [] : [child];
  });
  /** The box that is seen: without a border or text of its own, only what is inside. */
  const seen = el => {
    const box = el.getBoundingClientRect(), kids = boxes(el);
    const text = [...el.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (parseFloat(style(el).borderBottomWidth) || text || !kids.length) return box;
    const inside = kids.map(kid => kid.getBoundingClientRect());
    return { left: box.left, right: box.right,
      top: Math.max(box.top, Math.min(...inside.map(rect => rect.top))),
      bottom: Math.min(box.bottom, Math.max(...inside.map(rect => rect.bottom))) };
  };
  const beside = (a, b) => a.right <= b.left + 1 || b.right <= a.left + 1;

  // Nothing lies on something else, or sticks out of what it is in.
  const walk = el => {
    if (el.tagName === "svg") return;
    const outer = el.getBoundingClientRect(), clips = style(el).overflowX !== "visible";
    const kids = boxes(el).filter(child => style(child).display !== "inline");
    const rects = kids.map(child => child.getBoundingClientRect());
    kids.forEach((child, i) => {
      const { left, right, top, bottom } = rects[i];
      if (!clips && (left < outer.left - 1 || right > outer.right + 1 || bottom > outer.bottom + 1))
        faults.push(`${name(child)} sticks out of ${name(el)}`);
      kids.slice(0, i).forEach((other, j) => {
        if (!beside(rects[i], rects[j]) && top < rects[j].bottom - 1 && rects[j].top < bottom - 1)
          faults.push(`${name(child)} lies on ${name(other)}`);
      });
    });
    if (!clips && style(el).display !== "inline" && el.scrollWidth > el.clientWidth + 1)
      faults.push(`what is in ${name(el)} is wider than it`);
    kids.forEach(walk);
  };
  walk(document.body);
  const { scrollWidth, clientWidth } = document.documentElement;
  if (scrollWidth !== clientWidth) faults.push("it scrolls sideways");

  // The parts of all columns: no hole between two of them, and each heading above what it names.
  const parts = el => boxes(el).flatMap(child => child.matches(SECTIONS) ? parts(child) : [child]);
  const all = parts(document.body), rects = all.map(seen);
  const line = el => parseFloat(style(/^H\d/.test(el.tagName) ? el : document.body).lineHeight) + 1;
  all.forEach((part, i) => {
    const above = rects.filter((rect, j) => i !== j && !beside(rect, rects[i]) &&
      rect.bottom <= rects[i].top + 1);
    const gap = rects[i].top - Math.max(0, ...above.map(rect => rect.bottom));
    if (gap > line(above.length ? part : document.querySelector("h1")))
      faults.push(`a hole of ${Math.round(gap)} pixels above ${name(part)}`);
    if (!/^H\d/.test(part.tagName)) return;
    const mark = part.closest("header")?.querySelector(".logo")?.getBoundingClientRect();
    if (mark) {  // a bar's stands beside its mark, or below it where there is no room
      const isBelow = Math.abs(rects[i].left - mark.left) <= 1 && rects[i].top >= mark.bottom - 1;
      const middle = (rects[i].top + rects[i].bottom) / 2;
      const isBeside = rects[i].left >= mark.right && Math.abs(middle - (mark.top + mark.bottom) / 2) <= 3;
      if (!isBeside && !isBelow) faults.push(`${name(part)} is not beside the mark of its bar`);
      return;
    }
    const next = rects[i + 1], under = next.top - rects[i].bottom;
    if (Math.abs(next.left - rects[i].left) > 1 || under < -1 || under > line(document.body))
      faults.push(`${name(part)} is not directly above ${name(all[i + 1])}`);
  });
  return faults;
}
