// The texts of a page in another language than English, by the English ones, as the catalogue has them.
globalThis.WORDS = {{ words | tojson }};
/** The text of a literal in the page's language, in which {0} is its first value. */
globalThis.tr = (parts, ...values) => {
  const text = WORDS[parts.join("{}")];
  return text === undefined ? String.raw({ raw: parts }, ...values)
    : text.replace(/\{(\d+)\}/g, (_, index) => values[index]);
};
