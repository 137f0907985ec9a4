"""Exchanges recorded from vLLM 0.32's server, asked again of ours, and what differs.

``data/http_recordings.jsonl`` has one exchange a line: steps (requests), what was seen
(``expect``), and what of it counts (``compare``). Streams are compared by what a reader puts
together from them: where a text is cut depends on how busy a machine is.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections import defaultdict
from pathlib import Path

import httpx

FILE = Path(__file__).parent / "data" / "http_recordings.jsonl"
# Differences that we want, and why; everything else must be equal.
KNOWN: dict[str, str] = {}
_NEVER_OURS = {"kv_transfer_params", "ec_transfer_params", "routed_experts"}
_OF_TEXT = {"text", "content", "token", "tokens", "token_ids", "bytes", "logprob", "text_offset",
            "token_logprobs", "top_logprobs", "stop_reason"}  # fmt: skip
_OUR_ID = re.compile(r"(cmpl|chatcmpl|modelperm)-[0-9a-f]{16}")


def recordings(profile: str, without: tuple[str, ...] = ("children",)):
    """The exchanges of a profile, but for those that need what we have not."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    found = (json.loads(line) for line in lines)
    return [r for r in found if r["profile"] == profile and not set(r["needs"]) & set(without)]


def ask(client: httpx.Client, recording: dict) -> list[dict]:
    """Answers of our server to each step of a recording."""
    nonce = uuid.uuid4().hex
    return [
        _step(client, json.loads(json.dumps(step).replace("{{nonce}}", nonce)))
        for step in recording["steps"]
    ]


def _step(client: httpx.Client, step: dict) -> dict:
    request, kind = step["request"], step.get("as", "json")
    if kind == "metrics":
        return _metrics(client, step)
    body = {"content": request["body"].encode()} if "body" in request else {}
    if "json" in request:
        body = {"json": request["json"]}
    place = (request["method"], request["path"])
    with client.stream(*place, headers=request.get("headers"), **body) as answer:
        if kind == "disconnect":
            lines = (line for line in answer.iter_lines() if line.startswith("data: "))
            count = sum(1 for _, _ in zip(range(step["after_events"]), lines, strict=False))
            return {"status": answer.status_code, "events_read": count}
        text = "".join(answer.iter_text())
    seen = {"status": answer.status_code, "headers": answer.headers, "text": text}
    media = answer.headers.get("content-type", "")
    if media.startswith("text/event-stream"):
        seen["events"] = events_of(text)
    elif media.startswith("application/json"):
        seen["json"] = json.loads(text)
    return seen


def events_of(text: str) -> list:
    """A stream's events; every one is one line and a blank one."""
    *events, rest = text.split("\n\n")
    assert rest == "", f"the stream does not end with a blank line: {rest!r}"
    assert all(e.startswith("data: ") and "\n" not in e for e in events), events
    assert events[-1] == "data: [DONE]"
    return [json.loads(event[6:]) for event in events[:-1]] + ["[DONE]"]


def _metrics(client: httpx.Client, step: dict) -> dict:
    until, deadline = step.get("until", {}), time.monotonic() + step.get("seconds", 10)
    while True:
        answer = client.get(step["request"]["path"])
        families, samples = metrics_of(answer.text)
        reached = all(total(samples, name) == value for name, value in until.items())
        if reached or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    seen = {"status": answer.status_code, "headers": answer.headers, "families": families}
    return seen | {"samples": samples, "until": "reached" if reached else "never"}


def metrics_of(text: str) -> tuple[dict, dict]:
    """Families and samples as prometheus_client's own parser reads them."""
    from prometheus_client.parser import text_string_to_metric_families

    families, samples = {}, {}
    for family in text_string_to_metric_families(text):
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        buckets = [s.labels["le"] for s in family.samples if "le" in s.labels]
        families[name] = {"type": family.type, "labels": sorted(labels), "buckets": buckets}
        for sample in family.samples:
            own = {k: v for k, v in sample.labels.items() if k not in ("engine", "model_name")}
            shown = ",".join(f'{k}="{v}"' for k, v in sorted(own.items()))
            samples[f"{sample.name}{{{shown}}}" if shown else sample.name] = sample.value
    return families, samples


def total(samples: dict, name: str) -> float:
    return sum(v for key, v in samples.items() if key.partition("{")[0] == name or key == name)


def differences(recording: dict, seen: list[dict]) -> list[str]:
    """Sentences about what is not as it was recorded."""
    found = []
    for want, got in zip(recording["expect"], seen, strict=True):
        found += _Comparison(recording.get("compare", {})).step(want, got)
        for name, value in want.get("delta", {}).items():
            grown = total(got["samples"], name) - total(seen[want["since"]]["samples"], name)
            if grown != value:
                found.append(f"{name} grew by {grown}, not {value}")
    for one, other in recording.get("compare", {}).get("same_text", []):
        told = [[c["message"] for c in seen[i]["json"]["choices"]] for i in (one, other)]
        if told[0] != told[1]:
            found.append(f"the messages are not the same: {told}")
    return found


class _Comparison:
    """Compares values under one recording's rules."""

    def __init__(self, rules: dict):
        self.ignored = set(rules.get("ignore_keys", ()))
        self.sampled = bool(rules.get("sampled"))
        self.contains = rules.get("contains", ())

    def step(self, want: dict, got: dict) -> list[str]:
        if want["status"] != got["status"]:
            return [f"status {got['status']}, not {want['status']}: {got.get('text', '')[:300]}"]
        found = []
        for name, value in want.get("headers", {}).items():
            mine = got["headers"].get(name, "")
            if value.split(";")[0] != mine.split(";")[0]:
                found.append(f"header {name}: {mine!r}, not {value!r}")
        for key in ("text", "events_read", "until"):
            if key in want and want[key] != got[key]:
                found.append(f"{key}: {got[key]!r}, not {want[key]!r}")
        if "json" in want:
            found += self.value(want["json"], got.get("json"), "body")
        if "events" in want:
            if "events" not in got:
                return [f"no stream: {got['text'][:300]}"]
            found += self.value(together(want["events"]), together(got["events"]), "stream")
        for name, family in want.get("families", {}).items():
            if got["families"].get(name) != family:
                found.append(f"metric {name}: {got['families'].get(name)}, not {family}")
        return found

    def value(self, want, got, path: str) -> list[str]:
        key = path.rsplit(".", 1)[-1].split("[")[0]
        if key in self.ignored:
            return []
        if isinstance(want, str) and want.startswith("<"):
            return [] if got not in (None, "") else [f"{path} is {got!r}, not {want}"]
        if key == "id" and isinstance(want, str) and want.endswith("-<id>"):
            return [] if got == want or _OUR_ID.fullmatch(str(got)) else [f"{path} is {got!r}"]
        if self.sampled and key in _OF_TEXT:
            return []
        if path == "body.error.message":
            missing = [word for word in self.contains if word not in got]
            return [f"{path} does not say {missing}: {got}"] if missing or not got else []
        if path == "body.error.param" and isinstance(want, str) and isinstance(got, str):
            want, got = (re.sub(r"\.\d.*", "", one) for one in (want, got))
            want, got = (".".join(one.split(".")[:2]) for one in (want, got))
        if isinstance(want, dict) and isinstance(got, dict):
            names = [n for n in want | got if n not in _NEVER_OURS]
            lacking = [n for n in names if n not in got or n not in want]
            if lacking:
                return [f"{path} has other keys: {lacking}"]
            return [line for n in names for line in self.value(want[n], got[n], f"{path}.{n}")]
        if isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
            pairs = enumerate(zip(want, got, strict=True))
            return [line for i, pair in pairs for line in self.value(*pair, f"{path}[{i}]")]
        if isinstance(want, float) or isinstance(got, float):
            near = None not in (want, got) and abs(want - got) < 1e-3
            return [] if near else [f"{path} is {got}, not {want}"]
        same = (want, type(want)) == (got, type(got))
        return [] if same else [f"{path} is {got!r}, not {want!r}"]


def together(events: list) -> dict:
    """A stream put together: the joined pieces of each choice, and the rest."""
    choices: dict = defaultdict(lambda: {"text": "", "ids": [], "logprobs": {}, "kinds": []})
    keys: dict[str, set] = defaultdict(set)
    last = {"usage": None, "fingerprint in": None, "errors": []}
    for event in events[:-1]:
        if "error" in event:
            last["errors"].append({k: v for k, v in event["error"].items() if k != "message"})
            continue
        if not event["choices"]:
            last["usage"] = event["usage"]
        kind = "usage"
        for choice in event["choices"]:
            mine, delta = choices[str(choice["index"])], choice.get("delta", {})
            mine["text"] += choice.get("text") or delta.get("content") or ""
            mine["ids"] += choice.get("token_ids") or []
            for name, values in (choice.get("logprobs") or {}).items():
                mine["logprobs"].setdefault(name, []).extend(values)
            kind = "role" if "role" in delta else "piece"
            if choice["finish_reason"] is not None:
                kind = "finish"
                mine["finish"] = [choice["finish_reason"], choice["stop_reason"]]
            if kind not in mine["kinds"]:
                mine["kinds"].append(kind)
            keys[kind + " choice"].add(tuple(sorted(choice)))
        keys[kind].add(tuple(sorted(event)))
        if "system_fingerprint" in event:
            last["fingerprint in"] = kind
        last |= {k: event[k] for k in ("object", "model", "id")}
    shapes = {kind: [list(one) for one in sorted(found)] for kind, found in keys.items()}
    return {"choices": dict(choices), "keys": shapes} | last
