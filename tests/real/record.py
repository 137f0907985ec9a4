"""Write down what tests compare with: ``python tests/real/record.py tokens``, and so on.

``tokens`` needs llama-cpp-python and ``vectors`` sentence-transformers; the tests need neither.
``perplexities`` measures the table that chapters print, with this engine.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from token_lines import GEMMA_SPECIAL, SOURCES, SPECIAL, digest, make_lines

import minivllm
from minivllm.models.pull import pull

TOKENS = {  # model: where they are kept, and its special tokens
    "smollm2": (SOURCES / "token_digests.bin", SPECIAL),
    "gemma3": (SOURCES / "gemma3_digests.bin", GEMMA_SPECIAL),
}
VECTORS = SOURCES / "minilm_vectors.npy"
TABLE = Path(minivllm.__file__).parent / "lab" / "quantize" / "smollm2.toml"


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

    for name, (file, special) in TOKENS.items():
        llama = Llama(str(pull(name, agreed=True)), vocab_only=True, verbose=False)
        lines = make_lines(special)
        ids = [llama.tokenize(line.encode(), add_bos=False, special=True) for line in lines]
        file.write_bytes(b"".join(map(digest, ids)))


def record_vectors() -> None:
    """Vectors of Sentence Transformers, float32 ``[texts, 384]``."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(pull("minilm")), device="cpu")
    np.save(VECTORS, model.encode(vector_texts(), batch_size=64))


def record_perplexities() -> None:
    """All rows of the package's table; twenty minutes or more."""
    from dequantized import load_dequantized, save_floats
    from perplexity import CACHES, WEIGHTS, perplexity, quantize

    file, lines = pull("smollm2"), ["# Perplexities of SmolLM2: see measured.py.", "", "[caches]"]
    lines += [f"{name} = {perplexity(file, **kwargs):.3f}" for name, (kwargs, _) in CACHES.items()]
    lines += ["", "[weights]"]
    with tempfile.TemporaryDirectory() as folder:
        source = save_floats(file, load_dequantized(file), Path(folder))
        for name in WEIGHTS:
            quantize(source, Path(folder) / name, name)
            lines.append(f"{name} = {perplexity(Path(folder) / name):.3f}")
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    {"tokens": record_tokens, "vectors": record_vectors, "perplexities": record_perplexities}[
        sys.argv[1]
    ]()
