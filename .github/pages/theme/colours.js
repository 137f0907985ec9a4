// Colours of Python that is being typed, with the classes that Pygments gives to code that is stored.
const KEYWORDS = "and as assert async await break class continue def del elif else except finally for from global if "
  + "import in is lambda match nonlocal not or pass raise return try while with yield";
const CONSTANTS = "False None True self";
const BUILTINS = "abs all any bool dict enumerate filter float frozenset int isinstance iter len list map max min next "
  + "object print range repr reversed round set sorted str sum super tuple type zip";
const any = words => words.replaceAll(" ", "|");
const KINDS = [
  ["c1", "#.*"],
  ["s2", String.raw`[rbfuRBFU]{0,2}(?:"""[^]*?(?:"""|(?![^]))|'''[^]*?(?:'''|(?![^]))|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)`],
  ["mi", String.raw`\b\d[\w.]*`],
  ["nf", String.raw`(?<=\bdef\s+)\w+`],
  ["nc", String.raw`(?<=\bclass\s+)\w+`],
  ["nd", String.raw`(?<=^\s*)@[\w.]+`],
  ["k", String.raw`\b(?:${any(KEYWORDS)})\b`],
  ["kc", String.raw`\b(?:${any(CONSTANTS)})\b`],
  ["nb", String.raw`(?<![.\w])(?:${any(BUILTINS)})\b`],
];
const TOKEN = new RegExp(KINDS.map(([kind, rule]) => `(?<${kind}>${rule})`).join("|"), "gm");
const escaped = text => text.replace(/[&<>]/g, sign => `&#${sign.charCodeAt()};`);

/** HTML of a piece of Python. */
export function highlighted(source) {
  let html = "", end = 0;
  for (const found of source.matchAll(TOKEN)) {
    const [kind] = Object.entries(found.groups).find(([, text]) => text !== undefined);
    html += `${escaped(source.slice(end, found.index))}<span class="${kind}">${escaped(found[0])}</span>`;
    end = found.index + found[0].length;
  }
  return html + escaped(source.slice(end));
}
