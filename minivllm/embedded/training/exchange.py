"""Exchange the tokens of what is copied for others, so that every token is copied now and then.

Most tokens are rare in names and cells, and a token that was never copied in training comes out
as another one. Copying does not care what a token means: in a part of the samples, the pieces of
words that names and cells are made of are replaced by random ones, the same everywhere in the
sample.
"""

import random
from dataclasses import replace

from tokenizers import Tokenizer

from minivllm.embedded.training.encoding import Encoded


class Exchange:
    """Knows the tokens that are made of letters alone: capitalized ones, and the others."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        words = {index: tokenizer.decode([index]) for index in tokenizer.get_vocab().values()}
        letters = sorted(index for index, word in words.items() if word.isalpha())
        self.pools = [
            [index for index in letters if words[index][0].isupper() == upper]
            for upper in (False, True)
        ]
        self.pool_of = {index: pool for pool in self.pools for index in pool}

    def apply(self, rng: random.Random, encoded: Encoded) -> Encoded:
        """The sample with other tokens in place of those that occur only where words are copied.

        What is said in the prompt or in an answer beside that stays as it is.
        """
        kept = {
            token for token, copied in zip(encoded.ids, encoded.copied, strict=True) if not copied
        }
        present = set(encoded.ids)
        others = {
            token: rng.choice(self.pool_of[token])
            for token in dict.fromkeys(encoded.ids)
            if token in self.pool_of and token not in kept
        }
        others = {old: new for old, new in others.items() if new not in present}
        return replace(encoded, ids=[others.get(token, token) for token in encoded.ids])
