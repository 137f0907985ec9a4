// Search: an index of all sections, made in the page when it is first opened. Chinese by characters.
import MiniSearch from "./minisearch.js";
import { say } from "./words.js";

const base = document.body.dataset.base, at = id => document.getElementById(id);
const words = text => text.toLowerCase().match(/[a-z0-9]+|[\u3400-\u9fff]/g) ?? [];
const QUIET = new Set("a an and are do does how i in is it my of on the to what when where which why with 的 了 吗 呢 是 什 么 怎".split(" "));
const plain = text => words(text).join(" ");
const sections = await (await fetch(`${base}/search.json`)).json();
const index = new MiniSearch({
  fields: ["title", "chinese", "page", "text"], tokenize: words, processTerm: term => term,
  searchOptions: {
    boost: { title: 6, chinese: 6, page: 2 }, combineWith: "AND", prefix: term => term.length > 2,
    fuzzy: term => term.length > 5 ? .15 : 0, boostDocument: id => sections[id].weight,
  },
});
index.addAll(sections.map((section, id) => ({ ...section, id })));

/** Sections, best first: those that are called so, then by how much of them is about it. */
export function search(query) {
  const asked = plain(query);
  if (!asked) return [];
  const telling = words(query).filter(word => !QUIET.has(word)).join(" ") || query;
  let found = index.search(telling);
  if (!found.length) found = index.search(telling, { combineWith: "OR" });
  const named = ({ id }) =>
    [sections[id].title, ...sections[id].chinese.split(/[（）]/)].some(name => plain(name) === asked);
  return [...found.filter(named), ...found.filter(hit => !named(hit))].map(({ id }) => sections[id]);
}

/** Some whole words around the first that was asked for. */
function piece({ text }, query) {
  const found = Math.max(0, text.toLowerCase().indexOf(words(query)[0]));
  const from = found < 60 ? 0 : text.indexOf(" ", found - 50) + 1;
  const end = text.length <= from + 150 ? text.length : text.lastIndexOf(" ", from + 150);
  const to = end > from + 100 ? end : from + 150;
  return (from ? "…" : "") + text.slice(from, to) + (to < text.length ? "…" : "");
}

/** A section's title; a term's in the language of the page first. */
function names({ title, chinese }) {
  const both = [title, chinese].filter(Boolean);
  return document.documentElement.lang === "en" ? both : both.reverse();
}

function show() {
  const query = at("query").value, hits = search(query).slice(0, 12);
  at("hits").replaceChildren(...hits.map(section => {
    const item = document.createElement("li"), link = document.createElement("a");
    const part = (name, text) => Object.assign(document.createElement(name), { textContent: text });
    link.href = `${base}/${section.url}`;
    link.append(part("b", names(section).join(" · ")),
      part("small", section.page === section.title ? "" : section.page), part("span", piece(section, query)));
    link.addEventListener("click", () => at("finder").close());
    item.append(link);
    return item;
  }));
  at("found").textContent = !query.trim() ? "" : hits.length ? "" : say("Nothing found.");
}

at("query").addEventListener("input", show);
at("finder").addEventListener("keydown", event => {
  const links = [...at("hits").querySelectorAll("a")], now = links.indexOf(document.activeElement);
  const to = { ArrowDown: now + 1, ArrowUp: now - 1 }[event.key];
  if (event.key === "Enter" && event.target === at("query")) {
    event.preventDefault();
    links[0]?.click();
  }
  if (to === undefined) return;
  event.preventDefault();
  (links[to] ?? at("query")).focus();
});

export function open() {
  at("finder").showModal();
  at("query").select();
}
