// Return what a page shows outside of brackets, if it has words: texts and labels, with their places.
names => {
  const found = [], strip = text => {
    for (let before = null; before !== text;) [before, text] = [text, text.replace(/⟦[^⟦⟧]*⟧/g, "")];
    for (const name of names) text = text.replaceAll(name, "");
    return text;
  };
  const look = (text, where) => {
    if (/[A-Za-z]{3,}/.test(strip(text))) found.push(`${where}: ${text}`);
  };
  const place = element => element.tagName.toLowerCase() + (element.id && "#" + element.id);
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());)
    if (!node.parentNode.closest("script, style, textarea, noscript, .colours, details pre, [lang]:not(html)"))
      look(node.data, place(node.parentNode));
  for (const element of document.querySelectorAll("[title], [aria-label], [placeholder], [aria-valuetext]"))
    for (const name of ["title", "aria-label", "placeholder", "aria-valuetext"])
      if (element.hasAttribute(name)) look(element.getAttribute(name), `${place(element)} ${name}`);
  return [...new Set(found)];
}
