"""Drives a model step by step over a paged cache, as the engine does, with pages in random order."""

import random

import torch

from tensorrt_lora.attention_backend import AttentionBatch, get_attention_backend
from tensorrt_lora.models.modeling_decoder import DecoderModelForCausalLM


class PagedForward:
    """A cache of `num_pages` pages and the sequences in it, called by name.

    Args:
        model: built with the attention backend `backend`.
        page_size: tokens in a page.
        num_pages: pages in the cache; page 0 is never handed out.
        backend: name of the attention backend.
    """

    def __init__(
        self,
        model: DecoderModelForCausalLM,
        *,
        page_size: int = 4,
        num_pages: int = 256,
        backend: str = "VANILLA",
    ) -> None:
        self.model = model
        weight = model.lm_head.weight
        config = model.config
        shape = (config.num_layers, num_pages, 2, page_size, config.num_kv_heads, config.head_dim)
        self.metadata = get_attention_backend(backend).Metadata(
            kv_cache=torch.zeros(shape, dtype=weight.dtype, device=weight.device),
            num_heads=config.num_heads,
            max_num_requests=16,
            max_num_tokens=1024,
            use_cuda_graph=False,
        )
        self._page_size = page_size
        self._free_pages = list(range(1, num_pages))
        random.Random(0).shuffle(self._free_pages)
        self._pages: dict[str, list[int]] = {}
        self._lengths: dict[str, int] = {}

    @torch.inference_mode()
    def step(
        self, contexts: dict[str, list[int]] | None = None, generations: dict[str, int] | None = None
    ) -> dict[str, torch.Tensor]:
        """Append tokens to sequences: chunks of prompts, then single generated tokens.

        Returns:
            Each sequence's logits [new tokens, vocab] float32.
        """
        chunks = {**(contexts or {}), **{name: [token] for name, token in (generations or {}).items()}}
        positions: list[int] = []
        for name, tokens in chunks.items():
            start = self._lengths.get(name, 0)
            positions += range(start, start + len(tokens))
            self._lengths[name] = start + len(tokens)
            pages = self._pages.setdefault(name, [])
            while len(pages) * self._page_size < self._lengths[name]:
                pages.append(self._free_pages.pop())
        self.metadata.prepare(
            AttentionBatch(
                num_contexts=len(contexts or {}),
                query_lens=[len(tokens) for tokens in chunks.values()],
                kv_lens=[self._lengths[name] for name in chunks],
                page_ids=[self._pages[name] for name in chunks],
            )
        )
        device = self.model.lm_head.weight.device
        input_ids = torch.tensor([token for tokens in chunks.values() for token in tokens], device=device)
        hidden = self.model(input_ids, torch.tensor(positions, device=device), self.metadata, None)
        logits = self.model.compute_logits(hidden, None).split([len(tokens) for tokens in chunks.values()])
        return dict(zip(chunks, logits, strict=True))
