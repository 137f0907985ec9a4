"""A small random LLaVA with a tokenizer and a chat template, and pictures to ask it about."""

import base64
import io
import wave

import numpy as np
import transformers
from multimodal_models import SIDE, randomized
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

PLACEHOLDER = "<image>"
NUM_EMBEDS = 16  # of a picture
STRING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PARTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for part in m.content %}"
    "{% if part.type == 'image' %}<image>\n{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def save_picture_chat(directory, template=STRING):
    """A SigLIP tower and a Qwen2, whose tokens are single bytes; returns the directory."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", clean_up_tokenization_spaces=False,
        additional_special_tokens=["<|im_start|>", PLACEHOLDER],
    )  # fmt: skip
    fast.chat_template = template
    fast.save_pretrained(directory)
    config = transformers.LlavaConfig(
        vision_config=transformers.SiglipVisionConfig(
            hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3,
            image_size=SIDE, patch_size=6,
        ),
        text_config=transformers.Qwen2Config(
            vocab_size=len(fast), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512,
            tie_word_embeddings=False, eos_token_id=fast.eos_token_id, bos_token_id=None,
        ),
        image_token_index=fast.convert_tokens_to_ids(PLACEHOLDER),
        vision_feature_select_strategy="full",
    )  # fmt: skip
    model = randomized(transformers.LlavaForConditionalGeneration(config))
    model.save_pretrained(directory)
    side = {"height": SIDE, "width": SIDE}
    transformers.SiglipImageProcessorPil(size=side).save_pretrained(directory)
    return directory


def picture(seed=0, size=(30, 20), mode="RGB"):
    """A picture of noise."""
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(noise).convert(mode)


def encoded(image, kind="PNG", **options):
    """The bytes of a file with this picture."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def data_uri(data, kind="image/png"):
    """A data URI of a file's bytes."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def image_part(url, **more):
    """A part of a message that names a picture."""
    return {"type": "image_url", "image_url": {"url": url}, **more}


def user(*parts):
    """A message of a user; strings become parts."""
    content = [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts]
    return {"role": "user", "content": content}


def save_small_tokenizer(directory, names, template=STRING):
    """A tokenizer of 92 characters and five special tokens, as the other small models have them."""
    letters = "\n" + "".join(map(chr, range(32, 123)))
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False,
        additional_special_tokens=[*names, "<|endoftext|>"],
    )  # fmt: skip
    assert len(fast) == 97
    fast.chat_template = template
    fast.save_pretrained(directory)
    return directory


def wav(samples, rate=16000):
    """The bytes of a WAV file of 16 bits."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes((np.asarray(samples) * 32767).astype("<i2").tobytes())
    return file.getvalue()
