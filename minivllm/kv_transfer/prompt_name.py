"""prompt_name: what a prompt's K and V are called outside of the engine that has computed them.

Equal names must mean equal bytes, on every machine. So a name is a digest of all that the bytes
depend on: the tokens with the block hashes' extra keys, the model, and the form of a block.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

from minivllm.kv.prefix_cache import generate_block_hash_extra_keys, hash_block_tokens
from minivllm.request import Request

_SAMPLE = 2**16  # bytes of each end of a weight file that are read
_ROOT = bytes(32)


def model_fingerprint(directory: Path) -> str:
    """Return a digest of a model: its config, and size and both ends of each weight file.

    Args:
        directory: of the model, or a GGUF file.
    """
    digest = sha256()
    files = [directory] if directory.is_file() else sorted(directory.iterdir())
    for path in files:
        if (
            path.suffix not in (".safetensors", ".bin", ".pt", ".gguf")
            and path.name != "config.json"
        ):
            continue
        size = path.stat().st_size
        digest.update(repr((path.name, size)).encode())
        with path.open("rb") as file:
            digest.update(file.read(_SAMPLE))
            file.seek(max(0, size - _SAMPLE))
            digest.update(file.read(_SAMPLE))
    return digest.hexdigest()


def cache_form(config: Any) -> str:
    """Return what beside a prompt the bytes of its blocks depend on, as one text.

    Args:
        config: a VllmConfig.
    """
    cache = config.cache_config
    form = {
        "model": model_fingerprint(Path(config.load_config.model_directory)),
        "dtype": str(config.model_config.dtype),
        "kv_cache_dtype": cache.cache_dtype,
        "block_size": cache.block_size,
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
    }
    return repr(sorted(form.items()))


def _extra_keys(request: Request, start: int, end: int) -> tuple[Any, ...]:
    """Keys of a block hash; of an adapter that was read only the digest of its files is left.

    Its name, number and directory may be others on another machine.
    """
    keys = generate_block_hash_extra_keys(request, start, end)
    if start > 0 or request.lora is None or not request.lora.digest:
        return keys
    num_keys = len(request.lora)  # "lora" in the place of its number
    return ("lora", request.lora.digest, *keys[num_keys:])


def prompt_name(request: Request, block_size: int, form: str) -> str:
    """Return the name of a prompt's K and V: 64 hexadecimal digits.

    Args:
        request: its prompt, adapter, salt and pictures count.
        block_size: positions per block.
        form: see ``cache_form``.
    """
    token_ids = request.prompt_token_ids
    parent = _ROOT
    for start in range(0, len(token_ids), block_size):
        end = min(start + block_size, len(token_ids))
        extra_keys = _extra_keys(request, start, end)
        parent = hash_block_tokens(parent, token_ids[start:end], extra_keys)
    return sha256(parent + form.encode()).hexdigest()
