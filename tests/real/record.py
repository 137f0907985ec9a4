"""Write down what others compute: ``python tests/real/record.py tokens`` or ``vectors``.

The first needs llama-cpp-python, the second sentence-transformers; the tests need neither.
"""

import sys

import numpy as np
from token_lines import SOURCES, digest, make_lines

from minivllm.models.pull import pull

TOKENS, VECTORS = SOURCES / "token_digests.bin", SOURCES / "minilm_vectors.npy"


def vector_texts() -> list[str]:
    """Texts of 1 to 256 of MiniLM's tokens: words from the prose, and lines of other languages."""
    words = (SOURCES / "prose.txt").read_text(encoding="utf-8").split()
    lengths = (1, 2, 3, 5, 8, 12, 20, 30, 45, 60, 80, 100, 130, 160, 190)
    texts = [" ".join(words[20 * i : 20 * i + n]) for i, n in enumerate(lengths)]
    texts += (SOURCES / "languages.txt").read_text(encoding="utf-8").splitlines()[::5]
    return [*texts, "cat " * 253 + "sat"]  # 254 words and two special tokens


def record_tokens() -> None:
    """Digests of llama.cpp's ids of each line."""
    from llama_cpp import Llama

    llama = Llama(str(pull("smollm2")), vocab_only=True, verbose=False)
    ids = [llama.tokenize(line.encode(), add_bos=False, special=True) for line in make_lines()]
    TOKENS.write_bytes(b"".join(map(digest, ids)))


def record_vectors() -> None:
    """Vectors of Sentence Transformers, float32 ``[texts, 384]``."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(pull("minilm")), device="cpu")
    np.save(VECTORS, model.encode(vector_texts(), batch_size=64))


if __name__ == "__main__":
    {"tokens": record_tokens, "vectors": record_vectors}[sys.argv[1]]()
