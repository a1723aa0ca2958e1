"""A process that fine-tunes in plain PyTorch and prints one line on stdout per optimizer step.

`python -m benchmarks.runtime.plain_loop MODEL CONFIG DATA BATCH MICRO ROUNDS`: MODEL a folder with weights, CONFIG a
folder with config.json, DATA a folder of .npy arrays. The library is not used. After loading, the process stops itself
and waits for SIGCONT.
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch
import transformers


def main() -> None:
    """Train with micro-batch accumulation and fused AdamW, as the library does, on one thread."""
    weights, config, data = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    batch, micro, rounds = map(int, sys.argv[4:])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    transformers.utils.logging.disable_progress_bar()
    settings = transformers.AutoConfig.from_pretrained(config, trust_remote_code=False)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        weights, config=settings, trust_remote_code=False
    ).train()
    arrays = {
        name: torch.from_numpy(np.load(data / f"{name}.npy").astype(np.int64))
        for name in ("input_ids", "attention_mask", "labels")
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.0, fused=True)
    order = torch.randperm(len(arrays["labels"]))
    print("loaded", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)  # the parent resumes the process for its first turn
    for round in range(rounds):
        total = 0.0
        for start in range(round * batch, (round + 1) * batch, micro):
            rows = order[torch.arange(start, start + micro) % len(order)]
            loss = model(**{name: array[rows] for name, array in arrays.items()}).loss * micro / batch
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        print(round, total, flush=True)


if __name__ == "__main__":
    main()
