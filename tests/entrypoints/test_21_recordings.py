"""Our server answers as vLLM 0.32's did: its recorded exchanges, asked of a running server."""

import copy

import pytest
from http_recordings import KNOWN, ask, differences, recordings
from http_server import serving

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}{{ role_name | default('assistant') }}: {% endif %}"
)
PROFILES = {
    "plain": [],
    "guarded": [
        "--api-key", "token-abc123", "second-key", "--enable-request-id-headers",
        "--allowed-origins", '["http://localhost:3000"]', "--enable-prompt-tokens-details",
        "--enable-server-load-tracking", "--scheduling-policy", "priority",
        "--root-path", "/proxy", "--max-num-queued-reqs", "8",
    ],
    "custom": [
        "--chat-template", TEMPLATE, "--response-role", "bot", "--trust-request-chat-template",
        "--enable-force-include-usage", "--return-tokens-as-token-ids",
        "--override-generation-config", '{"temperature": 0, "max_new_tokens": 5}',
        "--enable-per-request-metrics", "--max-logprobs", "-1", "--disable-fastapi-docs",
        "--enable-tokenizer-info-endpoint",
    ],
    "dev": ["--disable-log-stats"],
    "tools": ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"],
}  # fmt: skip
CASES = [(profile, r) for profile in PROFILES for r in recordings(profile)]


@pytest.fixture(scope="module")
def client_of():
    """By profile: a client of a server that runs as that profile asks; one at a time."""
    running = {}

    def of(profile):
        if profile not in running:
            for context, client in running.values():
                client.close()
                context.__exit__(None, None, None)
            running.clear()
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("MINIVLLM_SERVER_DEV_MODE", "1" if profile == "dev" else "0")
                context = serving(*PROFILES[profile])
                running[profile] = context, context.__enter__().client()
        return running[profile][1]

    yield of
    for context, client in running.values():
        client.close()
        context.__exit__(None, None, None)


@pytest.mark.slow
@pytest.mark.parametrize(("profile", "recording"), CASES, ids=[r["id"] for _, r in CASES])
def test_answers_as_recorded(client_of, profile, recording):
    if recording["id"] in KNOWN:
        pytest.skip(KNOWN[recording["id"]])
    client = client_of(profile)
    assert differences(recording, ask(client, recording)) == []


def test_a_difference_is_seen():
    """The comparison is not blind: a changed text, key, count or event is found."""
    (recording,) = [r for r in recordings("plain") if r["id"] == "stream-usage"]
    seen = [dict(recording["expect"][0], headers={"content-type": "text/event-stream"})]
    assert differences(recording, seen) == []
    for change in (
        lambda events: events[0]["choices"][0].update(text="X"),
        lambda events: events[1]["choices"][0].pop("stop_reason"),
        lambda events: events[-2]["usage"].update(prompt_tokens=6),
        lambda events: events.pop(-2),
        lambda events: events[-2].pop("system_fingerprint"),
    ):
        other = copy.deepcopy(seen)
        change(other[0]["events"])
        assert differences(recording, other), change
