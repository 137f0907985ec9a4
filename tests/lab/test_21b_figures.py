"""Figure of notebook 21b: the bytes of a streamed answer, and what each is for."""

import pytest
from test_viz_figures import check_figure

from minivllm.viz import wire

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'1d\r\ndata: {"text":"caf\xc3\xa9 \\"1\\""}\n\n\r\n'
END = b'f\r\ndata: {"text":""}\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n'


def test_each_byte_has_its_part():
    figure = wire({"head": HEAD, "step 1": EVENT, "end": END})
    check_figure(figure, wire({"head": HEAD, "step 1": EVENT, "end": END}))
    assert figure.text.splitlines()[1:] == [
        "131 bytes in all, 11 of them text",
        "",
        "head    head 47",
        "step 1  chunk 6, event 8, JSON 11, text 11",
        "end     chunk 15, event 22, JSON 11",
    ]
    assert len(HEAD + EVENT + END) == 47 + 36 + 48
    assert "36 bytes, 11 text" in figure.svg


def test_a_chats_text_is_its_content():
    figure = wire({"a": b'8\r\ndata: {"delta":{"content":"Hi: data: 1"}}\n\n\r\n'})
    assert figure.text.endswith("a  chunk 5, event 8, JSON 24, text 11")


@pytest.mark.parametrize("reads", [{}, {"a": b""}, {str(i): b"x" for i in range(25)}])
def test_what_cannot_be_drawn(reads):
    with pytest.raises(ValueError, match="reads must be 1 to 24 pieces"):
        wire(reads)
