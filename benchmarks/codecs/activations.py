"""An activation of a real model, as it crosses a cut in the middle."""

import math
import statistics
import string
import textwrap

import torch
from transformers import AutoModel, AutoTokenizer

from benchmarks.runtime.workload import MODEL
from fleetune.models.source import source_folder

BLOCK, TOKENS = 3, 64


def recorded_activation(samples: int) -> torch.Tensor:
    """Return [samples, TOKENS, 384]: what MiniLM-L6 sends after half of its blocks, for docstrings of Python."""
    folder = source_folder(MODEL)
    model = AutoModel.from_pretrained(folder, trust_remote_code=False).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    texts = [
        item.__doc__
        for module in (math, statistics, string, textwrap)
        for item in vars(module).values()
        if callable(item) and item.__doc__
    ]
    batch = tokenizer(
        (texts * samples)[:samples], return_tensors="pt", padding="max_length", truncation=True, max_length=TOKENS
    )
    with torch.no_grad():
        found: torch.Tensor = model(**batch, output_hidden_states=True).hidden_states[BLOCK]
    return found
