// What scripts show, in the language of the page: English is what they say themselves.
const texts = JSON.parse(document.querySelector("#words")?.textContent ?? "{}");

/** A text in which {name} stands for a value. */
export const say = (text, values = {}) => (texts[text] ?? text).replace(/\{(\w+)\}/g, (_, name) => values[name]);
